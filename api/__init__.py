"""The service and the command line.

Imports run one way: cli > client > http > views > engine > db.
"""
