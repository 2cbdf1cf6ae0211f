"""The device that a model is on, and the order of work on it. Knows torch only."""
