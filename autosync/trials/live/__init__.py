"""Trials inside a running training job, on its own step and its own ranks.

May import every other package of trials but `launchers`; nothing in trials imports it."""
