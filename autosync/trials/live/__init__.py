"""Trials inside a running training job, on its own step and its own ranks."""
