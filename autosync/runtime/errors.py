"""What can go wrong while a plan is executed."""

from autosync.errors import AutosyncError


class SynchronizationFailed(AutosyncError):
    """A message of the plan did not arrive: a peer died, hung past the timeout or differs."""
