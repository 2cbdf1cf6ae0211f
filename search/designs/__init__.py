"""Hand-designed strategies, and what they are built of. Imports the space and facts of the domain,
not the sampler."""
