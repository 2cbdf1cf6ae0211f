"""What can go wrong while a plan is executed."""

from autosync.errors import AutosyncError


class SynchronizationFailed(AutosyncError):
    """A message of the plan did not arrive: a peer died, hung past the timeout or differs."""


def lost_peer(what: str, thing: str, value: object, state_is_split: bool) -> SynchronizationFailed:
    """state_is_split: every rank held only its own part of the optimizer's state."""
    remedy = "A peer died, hung past the timeout, or runs another plan: see its log. "
    if state_is_split:
        remedy += "Its part of the optimizer's state is lost with it. "
    remedy += "Start all ranks again from the last checkpoint."
    return SynchronizationFailed(what, thing=thing, value=value, remedy=remedy)
