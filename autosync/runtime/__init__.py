"""Executes a plan inside a training process. Imports plans and bundles, never trials or search.

docs/runtime.md follows a gradient through these files; pyproject.toml holds the layers among them.
"""
