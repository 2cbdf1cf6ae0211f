"""Predictions that trials correct: learned simulators, checkpoints, training on other domains.

The files here may import features/; below it are simulator/timeline, simulator/cost and the
documents.
"""
