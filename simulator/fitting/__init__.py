"""Costs fitted to measurements: single messages, whole iterations, trials, compute beside messages.

May import the timeline and the costs below it.
"""
