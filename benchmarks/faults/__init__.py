"""Trials under faults: what a soak injects, and what it prints."""
