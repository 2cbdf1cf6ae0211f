"""Predictions that trials correct: learned simulators, checkpoints, training on other domains.

models/ may import networks/ and features/, the files here all three; below them simulator/timeline,
simulator/cost and the documents.
"""
