"""Strategies made of others: neighbours of measured ones, and a genetic algorithm. Imports the
sampler and below, not the designs; compiled kernels, as there."""
