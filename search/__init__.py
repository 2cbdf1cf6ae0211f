"""The search for a domain's best strategy: what is tried, in which order, and what wins.

Imports `simulator`, `trials` and all below them, never `api`.
"""
