"""Trials: strategies measured by real execution."""
