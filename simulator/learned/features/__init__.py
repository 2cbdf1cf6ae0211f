"""Strategies as arrays of numbers: from their plans, their domain and the timeline. Imports no
model."""
