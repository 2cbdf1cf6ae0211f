"""Handles completed messages: exposes sums, runs updates, unpacks new values, and counts what the
iteration still lacks.

Nothing here issues a message: the caller, a queue or `step()`, afterwards issues the messages that
have become ready. One lock, the monitor's, guards all state; copies and updates run outside of it.
"""

import time
from collections.abc import Iterable
from enum import Enum

import torch
from torch import Tensor
from torch.optim import Optimizer

from autosync.codes import Update
from autosync.runtime.device.streams import DeviceEvent, Streams
from autosync.runtime.execution.monitor import Monitor
from autosync.runtime.layout.packing import hand_back, show_targets, unpack_values
from autosync.runtime.layout.records import (
    Bucket,
    MessageRecord,
    Records,
    Settings,
    VariableRecord,
)
from autosync.runtime.updates.clipping import keep_scaler_tensors
from autosync.runtime.updates.optimizers import (
    as_plain,
    plain_step,
    settings_of,
    update_aliases,
    update_parameters,
)
from autosync.runtime.updates.unused_variables import UnusedVariables


class Phase(Enum):
    """The script's position in its iteration."""

    IDLE = 0
    BACKWARD = 1
    REDUCING = 2
    STEPPED = 3


class Iteration:
    """Counts what the current iteration still lacks, over the records of a plan. Every
    method is called with the lock held.

    phase: of the script. number: counts iterations from 0; -1 before the first backward pass.
    outdated_variables: variables whose new values have not arrived.
    unreduced_buckets: buckets whose sums have not arrived.
    blocking_variables: whole variables that `step()` waits for, whose sums have not arrived.
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
        """A new iteration begins; every message of the last one has completed."""
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
        """The sums of a bucket have arrived. Returns the whole variables to update at once: those
        that `step()` has not waited for."""
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
        """Claim for the caller the whole variables with all sums that nobody updates yet."""
        taken, self._updatable = self._updatable, []
        return taken

    def claim(self, bucket: Bucket) -> bool:
        """Whether the caller, after `step()`, must run the flat update of a bucket."""
        if bucket.whole or bucket.claimed or not bucket.reduced:
            return False
        bucket.claimed = True
        return True

    def values_arrived(self, variables: Iterable[VariableRecord]) -> None:
        """These variables were updated, or one bucket of each brought its new values."""
        for variable in variables:
            variable.missing_values -= 1
            self.outdated_variables -= variable.missing_values == 0


class Completion:
    """Unpacks completed messages, and applies the optimizer as of one `step()`: with the
    hyperparameters of that moment, and on a GPU not before it. On a GPU all updates run on one
    stream, whichever thread asks for them."""

    def __init__(
        self,
        iteration: Iteration,
        optimizer: Optimizer,
        unused: UnusedVariables,
        monitor: Monitor,
        streams: Streams,
    ):
        self.iteration = iteration
        self._optimizer = optimizer
        self._unused = unused
        self._condition = monitor.condition
        self._trace = monitor.trace
        self._streams = streams
        self._settings: Settings = []
        self._step_event: DeviceEvent = None

    def unpack(self, record: MessageRecord) -> None:
        """Unpack the message's result into its place. Called without the lock."""
        bucket = record.bucket
        with torch.no_grad():
            if record.last and bucket.values_travel:
                unpack_values(bucket)
            elif bucket.whole and record.message.update != Update.NONE:
                hand_back(bucket)
        record.ended_event = self._streams.record_event()
        if self._trace is not None:
            record.read_clock(self._streams)
            self._trace.note(self.iteration.number, record)
        if bucket.ranges and bucket.whole:  # shown as tensors whose readers wait for no event
            self._streams.synchronize_event(record.ended_event)

    def count(self, record: MessageRecord) -> tuple[Bucket | None, list[VariableRecord]]:
        """Count the message's result. Returns the updates that it makes possible, claimed for
        the caller: a bucket's flat update, and deferred whole variables. Called with the lock
        held."""
        bucket, iteration = record.bucket, self.iteration
        stepped = iteration.phase is Phase.STEPPED
        record.done = True
        self._streams.set_last_event(bucket.variables)
        if bucket.ranges and bucket.whole and not stepped:
            show_targets(bucket)
        reduces = record.message.update != Update.NONE
        variables = iteration.reduced(bucket, stepped) if reduces else []
        if record.last and bucket.values_travel:
            iteration.values_arrived(bucket.variables)
        claimed = stepped and iteration.claim(bucket)
        self._condition.notify_all()
        return bucket if claimed else None, variables

    def note_step(self) -> None:
        """The script calls `step()`. From now on the script does not change gradients, and on a GPU
        all work that still reads the old values is queued on its stream."""
        self._settings = settings_of(self._optimizer)
        keep_scaler_tensors(self._optimizer, self._streams)
        self._step_event = self._streams.record_event()

    def update_bucket(self, bucket: Bucket) -> None:
        """Run the claimed flat update of a bucket, for the part that this rank updates.
        Called without the lock, on the stream of updates."""
        streams = self._streams
        with torch.no_grad():
            streams.wait_event(self._step_event)
            if bucket.update:
                unused = self.unused_by_all(bucket.variables)
                bucket.update.run(self._optimizer, self._settings, unused.__contains__)
            if not bucket.values_travel:
                unpack_values(bucket)
        bucket.updated_event = streams.record_event()
        with self._condition:
            bucket.updated = True
            bucket.updated_seconds = time.monotonic()
            if not bucket.values_travel:
                streams.set_last_event(bucket.variables)  # before they count as current
                self.iteration.values_arrived(bucket.variables)
            self._condition.notify_all()

    def update_deferred(self, variables: list[VariableRecord]) -> None:
        """Update whole variables while the script continues; it may already have replaced their
        gradients. Called without the lock, on the stream of updates."""
        unused = self.unused_by_all(variables)
        used = [variable for variable in variables if variable.index not in unused]
        self._streams.wait_event(self._step_event)
        update_aliases(self._optimizer, used, self._settings)
        self.updated(variables)

    def update_whole(self, variables: list[VariableRecord], all_of_them: bool) -> None:
        """Update whole variables from `parameter.grad`, within the script's `step()` and on the
        stream of updates. all_of_them: these are all variables of the optimizer."""
        # Of the others that was done at the end of backward.
        self.drop_unused([v for v in variables if v.deferred or v.held_by_some])
        self._streams.wait_event(self._step_event)
        if all_of_them and not self._script_may_change_settings():
            with as_plain(self._optimizer):
                plain_step(type(self._optimizer))(self._optimizer)
        else:
            update_parameters(self._optimizer, variables, self._settings)

    def drop_unused(self, variables: list[VariableRecord]) -> None:
        """Take the zeros off variables that no rank used: torch does not update what has no
        gradient. One that the script has put there stays. Called when their sums have completed."""
        unused = self.unused_by_all(variables)
        for variable in variables:
            if variable.index in unused and variable.parameter.grad is variable.target:
                variable.parameter.grad = None

    def updated(self, variables: list[VariableRecord]) -> None:
        """These variables have their new values."""
        with self._condition:
            self._streams.set_last_event(variables)
            self.iteration.values_arrived(variables)
            self._condition.notify_all()

    def unused_by_all(self, variables: list[VariableRecord]) -> frozenset[int]:
        """Indices of those that no rank used. A GPU is waited for only where it depends on ranks
        that may not have come so far."""

        def arrived() -> None:
            for variable in variables:
                self._streams.synchronize_event(variable.last_event)

        return self._unused.by_every_rank((variable.index for variable in variables), arrived)

    def _script_may_change_settings(self) -> bool:
        """Before the device reads them: a learning rate may be a tensor there."""
        values = (value for group in self._settings for value in group.values())
        return self._streams.asynchronous and any(isinstance(value, Tensor) for value in values)
