"""Executes a plan inside a training process."""
