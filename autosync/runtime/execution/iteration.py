"""What is still missing in the current iteration. Every method is called with the lock held."""

from collections.abc import Iterable
from enum import Enum

from autosync.runtime.layout.records import Bucket, Records, VariableRecord


class Phase(Enum):
    """Where the script is in its iteration."""

    IDLE = 0
    BACKWARD = 1
    REDUCING = 2
    STEPPED = 3


class IterationState:
    """Counters over the records of a plan.

    phase: of the script. number: counts iterations from 0; -1 before the first backward pass.
    outdated_variables: those whose new values are not here yet.
    unreduced_buckets: those whose sums are missing.
    blocking_variables: whole variables that `step()` waits for and whose sums are missing.
    """

    def __init__(self, records: Records):
        self.records = records
        self.phase = Phase.IDLE
        self.number = -1
        self.outdated_variables = 0
        self.unreduced_buckets = 0
        self.blocking_variables = 0
        self._updatable: list[VariableRecord] = []
        self._blocking = sum(v.whole and not v.deferred for v in records.variables)

    def rewind(self) -> None:
        """A new iteration begins; every message of the last one has landed."""
        self.number += 1
        for bucket in self.records.buckets:
            bucket.missing_arrivals = bucket.missing_gradients = len(bucket.variables)
            bucket.reduced = bucket.claimed = bucket.updated = False
        for variable in self.records.variables:
            variable.has_arrived = False
            variable.missing_sums = len(variable.buckets)
            variable.missing_values = 1 if variable.whole else len(variable.buckets)
        for record in self.records.messages:
            record.done = False
        self.outdated_variables = len(self.records.variables)
        self.unreduced_buckets = len(self.records.buckets)
        self.blocking_variables = self._blocking
        self._updatable.clear()

    def reduced(self, bucket: Bucket, stepped: bool) -> list[VariableRecord]:
        """The sums of a bucket are here; returns the whole variables to update at once, which
        are those that `step()` has not waited for."""
        bucket.reduced = True
        self.unreduced_buckets -= 1
        now: list[VariableRecord] = []
        for variable in bucket.variables:
            variable.missing_sums -= 1
            if variable.missing_sums or not variable.whole:
                continue
            (now if stepped and variable.deferred else self._updatable).append(variable)
            self.blocking_variables -= not variable.deferred
        return now

    def take_updatable(self) -> list[VariableRecord]:
        """Whole variables with all their sums that nobody updates yet: the caller does."""
        taken, self._updatable = self._updatable, []
        return taken

    def claim(self, bucket: Bucket) -> bool:
        """Whether the caller, after `step()`, is to run the flat update of a bucket."""
        if bucket.whole or bucket.claimed or not bucket.reduced:
            return False
        bucket.claimed = True
        return True

    def values_arrived(self, variables: Iterable[VariableRecord]) -> None:
        """These were updated, or one bucket of each brought its new values."""
        for variable in variables:
            variable.missing_values -= 1
            self.outdated_variables -= variable.missing_values == 0
