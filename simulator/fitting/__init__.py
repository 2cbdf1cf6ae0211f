"""Costs fitted to measurements: single messages, whole iterations, compute beside messages.

May import the timeline and the costs below it.
"""
