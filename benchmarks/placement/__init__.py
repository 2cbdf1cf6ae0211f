"""Modules placed on ranks of their own: what is predicted of published clusters, and what a small
model measures on an emulated one.
"""
