"""Inputs nobody meant for every parser of outside data: valid ones, changed."""
