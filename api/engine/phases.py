"""The phases of a tuning, as its events name them."""

TRIALS = ("search", "confirm")
"""Those in which strategies run."""
PHASES = ("opening", "ranking", *TRIALS, "done")
"""Kinds of events that say how far a tuning is; those of any other kind only have something to
tell (that it waits for another measurement, say)."""
