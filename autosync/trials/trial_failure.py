"""How a trial fails between the ranks and the result: an exception inside, never outside a pool."""

from autosync.trials.contract import TrialError


class TrialFailed(Exception):
    """A trial failed. ranks_usable: every rank refused it alike, so that all can go on."""

    def __init__(self, error: TrialError, ranks_usable: bool = False) -> None:
        super().__init__(error.message)
        self.error = error
        self.ranks_usable = ranks_usable
