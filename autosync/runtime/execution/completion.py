"""What follows from a message that has landed: sums are shown, values unpacked, updates run.

`land` decides and counts, `update` computes. Neither issues a message: whoever calls them, a queue
or `step()`, issues what has become ready afterwards.
"""

import time
from dataclasses import dataclass, field

import torch

from autosync.codes import Update
from autosync.runtime.device.streams import Streams
from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.runtime.execution.iteration import IterationState, Phase
from autosync.runtime.execution.monitor import Monitor
from autosync.runtime.layout.packing import hand_back, show_targets, unpack_values
from autosync.runtime.layout.records import Bucket, MessageRecord, VariableRecord
from autosync.runtime.updates.optimizer_application import OptimizerApplication


@dataclass(frozen=True, slots=True)
class DueUpdates:
    """Updates that a landed message makes possible, claimed for whoever receives this.

    bucket: whose flat update is due. variables: deferred whole variables that are due.
    """

    bucket: Bucket | None = None
    variables: list[VariableRecord] = field(default_factory=list)


class Completion:
    """The effects of messages that have landed. One lock, the monitor's, guards all state; copies
    and updates run outside of it."""

    def __init__(
        self,
        iteration: IterationState,
        application: OptimizerApplication,
        monitor: Monitor,
        streams: Streams,
        trace: ExecutionTrace | None,
    ):
        self._iteration = iteration
        self._application = application
        self._condition = monitor.condition
        self._streams = streams
        self._trace = trace

    def unpack(self, record: MessageRecord) -> None:
        """Put what the message brought where it belongs. Called without the lock."""
        bucket = record.bucket
        with torch.no_grad():
            if record.last and bucket.values_travel:
                unpack_values(bucket)
            elif bucket.whole and record.message.update != Update.NONE:
                hand_back(bucket)
        record.ended_event = self._streams.record_event()
        if self._trace is not None:
            record.read_clock(self._streams)
            self._trace.note(self._iteration.number, record)
        if bucket.ranges and bucket.whole:  # shown as tensors whose readers wait for no event
            self._streams.synchronize_event(record.ended_event)

    def land(self, record: MessageRecord) -> DueUpdates:
        """Count what the message brought. Called with the lock held."""
        bucket, iteration = record.bucket, self._iteration
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
        return DueUpdates(bucket if claimed else None, variables)

    def update_bucket(self, bucket: Bucket) -> None:
        """Run the flat update of a bucket that the caller has claimed. Called without the lock, on
        the landing stream."""
        with torch.no_grad():
            self._application.update_bucket(bucket)
        bucket.updated_event = self._streams.record_event()
        with self._condition:
            bucket.updated = True
            bucket.updated_seconds = time.monotonic()
            if not bucket.values_travel:
                self._streams.set_last_event(bucket.variables)  # before they count as current
                self._iteration.values_arrived(bucket.variables)
            self._condition.notify_all()

    def update_deferred(self, variables: list[VariableRecord]) -> None:
        """Update whole variables while the script goes on. Called without the lock, on the landing
        stream."""
        self._application.update_deferred(variables)
        self._updated(variables)

    def update_whole(self, variables: list[VariableRecord], all_of_them: bool) -> None:
        """Update whole variables within `step()`, on the landing stream."""
        self._application.update_whole(variables, all_of_them)
        self._updated(variables)

    def _updated(self, variables: list[VariableRecord]) -> None:
        with self._condition:
            self._streams.set_last_event(variables)
            self._iteration.values_arrived(variables)
            self._condition.notify_all()
