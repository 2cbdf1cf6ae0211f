"""What is still missing in the current iteration. Every method is called with the lock held."""

from collections.abc import Iterable
from enum import Enum

from autosync.runtime.layout.build import Records
from autosync.runtime.layout.records import Bucket, VariableRecord


class Phase(Enum):
    """Where the script is in its iteration."""

    IDLE = 0
    BACKWARD = 1
    REDUCING = 2
    STEPPED = 3


class Iteration:
    """Counters over the records of a plan.

    phase: of the script. iteration: from 0; -1 before the first backward pass.
    due: variables that are not current yet. unreduced: buckets whose sums are missing.
    blocking: whole variables that `step()` waits for and whose sums are missing.
    """

    def __init__(self, records: Records):
        self.records = records
        self.phase = Phase.IDLE
        self.iteration = -1
        self.due = 0
        self.unreduced = 0
        self.blocking = 0
        self._ripe: list[VariableRecord] = []

    def rewind(self) -> None:
        """A new iteration begins; nothing of the last one is under way."""
        self.iteration += 1
        for bucket in self.records.buckets:
            bucket.waiting = len(bucket.variables)
            bucket.reduced = bucket.claimed = bucket.updated = False
        for variable in self.records.variables:
            variable.fired = False
            variable.missing = len(variable.buckets)
            variable.owing = 1 if variable.whole else len(variable.buckets)
        for step in self.records.steps:
            step.done = False
        self.due = len(self.records.variables)
        self.unreduced = len(self.records.buckets)
        self.blocking = sum(v.whole and not v.deferred for v in self.records.variables)
        self._ripe.clear()

    def reduced(self, bucket: Bucket, stepped: bool) -> list[VariableRecord]:
        """The sums of a bucket are here; returns the whole variables to update at once, which
        are those that `step()` has not waited for."""
        bucket.reduced = True
        self.unreduced -= 1
        now: list[VariableRecord] = []
        for variable in bucket.variables:
            variable.missing -= 1
            if variable.missing or not variable.whole:
                continue
            (now if stepped and variable.deferred else self._ripe).append(variable)
            self.blocking -= not variable.deferred
        return now

    def take_ripe(self) -> list[VariableRecord]:
        """Whole variables with all their sums that nobody updates yet: the caller does."""
        ripe, self._ripe = self._ripe, []
        return ripe

    def claim(self, bucket: Bucket) -> bool:
        """Whether the caller, after `step()`, is to run the flat update of a bucket."""
        if bucket.whole or bucket.claimed or not bucket.reduced:
            return False
        bucket.claimed = True
        return True

    def arrived(self, variables: Iterable[VariableRecord]) -> None:
        """These were updated, or one bucket of each brought its new values."""
        for variable in variables:
            variable.owing -= 1
            self.due -= variable.owing == 0
