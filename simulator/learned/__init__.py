"""Predictions that trials correct: learned simulators, their checkpoints, transfer between domains.

models/ may import networks/ and features/, the files here all three; below them simulator/timeline,
simulator/cost and the documents.
"""
