"""Published measurements of real GPU clusters, predicted, and the constants fitted to them."""
