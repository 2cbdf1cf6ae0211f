"""Predictions of seconds an iteration: analytic, timeline, learned; and how good they are.

Imports `trials` and all below it, never `search` or `api`.
"""
