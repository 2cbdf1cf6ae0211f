"""Hand-designed strategies, and what they are built of."""
