"""What follows from the arrival of a message: sums are shown, updates run, the next may go out.

Threads of the queues call in here, and the script's own where it issues messages. One lock, the
monitor's, guards all state; summing and updating happen outside of it.
"""

import time
from collections.abc import Iterable

import torch

from autosync.codes import Update
from autosync.runtime.execution_trace import ExecutionTrace
from autosync.runtime.iteration import Iteration, Phase
from autosync.runtime.layout.packing import hand_back, show_targets, unpack_values
from autosync.runtime.layout.records import Bucket, MessageRecord, VariableRecord
from autosync.runtime.monitor import Monitor
from autosync.runtime.streams import Streams
from autosync.runtime.transport.message_queue import MessageQueue
from autosync.runtime.updates.optimizer_application import OptimizerApplication


class Completion:
    """The queues of a plan's messages, and the effects of those that have arrived.

    patience_seconds: see `MessageQueue`.
    """

    def __init__(
        self,
        round: Iteration,
        applying: OptimizerApplication,
        monitor: Monitor,
        streams: Streams,
        trace: ExecutionTrace | None,
        patience_seconds: float,
    ):
        self._round = round
        self._applying = applying
        self._monitor = monitor
        self._condition = monitor.condition
        self._streams = streams
        self._trace = trace
        self._patience_seconds = patience_seconds
        self._channels: list[MessageQueue] = []

    def start(self, ordered: Iterable[MessageRecord]) -> None:
        """Start the threads of every queue. ordered: all messages, in issue order."""
        steps = list(ordered)
        ends = self._patience_seconds, self._landed, self._failed
        for name in dict.fromkeys(step.queue for step in steps):
            of_queue = [step for step in steps if step.queue == name]
            self._channels.append(MessageQueue(name, of_queue, self._streams, *ends))

    def close(self) -> None:
        """Stop every thread."""
        for channel in self._channels:
            channel.close()
        self._channels.clear()

    def rewind(self) -> None:
        """Begin a new iteration. The caller holds the lock; nothing is in flight."""
        for channel in self._channels:
            channel.rewind()

    def pump(self) -> None:
        """Issue every message whose turn it is. The caller holds the lock."""
        for channel in self._channels:
            channel.pump()

    def update(self, bucket: Bucket) -> None:
        """Run the flat update of a bucket that the caller has claimed."""
        with self._streams.landing():
            with torch.no_grad():
                self._applying.flat(bucket)
            bucket.updated_mark = self._streams.mark()
            with self._condition:
                bucket.updated = True
                bucket.updated_seconds = time.monotonic()
                if not bucket.travels:
                    self._streams.stamp(bucket.variables)  # before anybody finds them current
                    self._round.arrived(bucket.variables)
                self.pump()
                self._condition.notify_all()

    def updated(self, variables: list[VariableRecord]) -> None:
        """Whole variables have their new values."""
        with self._condition:
            self._streams.stamp(variables)
            self._round.arrived(variables)
            self._condition.notify_all()

    def _landed(self, step: MessageRecord) -> None:
        """A message has arrived: runs on the landing thread of its channel."""
        bucket = step.bucket
        reduces = step.message.update != Update.NONE
        with torch.no_grad():
            if step.last and bucket.travels:
                unpack_values(bucket)
            elif reduces and bucket.whole:
                hand_back(bucket)
        step.ended_mark = self._streams.mark()
        if self._trace is not None:
            step.read_clock(self._streams)
            self._trace.note(self._round.iteration, step)
        if bucket.ranges and bucket.whole:  # shown as tensors that nobody need stay behind
            self._streams.finish(step.ended_mark)
        with self._condition:
            step.done = True
            self._streams.stamp(bucket.variables)
            stepped = self._round.phase is Phase.STEPPED
            if bucket.ranges and bucket.whole and not stepped:
                show_targets(bucket)
            ripe = self._round.reduced(bucket, stepped) if reduces else []
            if step.last and bucket.travels:
                self._round.arrived(bucket.variables)
            claimed = stepped and self._round.claim(bucket)
            self.pump()
            self._condition.notify_all()
        if claimed:
            self.update(bucket)
        if ripe:
            self._applying.deferred(ripe)
            self.updated(ripe)

    def _failed(self, error: BaseException, step: MessageRecord) -> None:
        """A message cannot arrive."""
        name = step.message.operation.name
        what = f"{name} of message {step.index} failed: {error}"
        self._monitor.fail(what, f"message {step.index}", name)
