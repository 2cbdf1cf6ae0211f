"""Regions of a model that torch.compile compiles, as a choice of a strategy."""
