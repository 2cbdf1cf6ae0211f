"""Strategies changed by small edits, and searches by them. Imports the sampler and below, not the
designs; compiled kernels, as there."""
