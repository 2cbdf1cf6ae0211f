"""What a strategy, its domain and the timeline say, as arrays of numbers. Imports no model."""
