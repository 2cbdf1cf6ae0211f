"""Simulators that learn from trials."""
