"""What follows from the arrival of a message: sums are shown, updates run, the next may go out.

Threads of the queues call in here, and the script's own where it issues messages. One lock, the
monitor's, guards all state; summing and updating happen outside of it.
"""

import time
from collections.abc import Iterable

import torch

from autosync.codes import Update
from autosync.runtime.execution_trace import Trace
from autosync.runtime.iteration import Phase, Round
from autosync.runtime.layout.packing import hand_back, show_targets, unpack_values
from autosync.runtime.layout.records import Content, Step, Variable
from autosync.runtime.monitor import Monitor
from autosync.runtime.streams import Streams
from autosync.runtime.transport.message_queue import ChannelQueue
from autosync.runtime.updates.optimizer_application import Applying


class Arrivals:
    """The queues of a plan's messages, and the effects of those that have arrived.

    patience_seconds: see `ChannelQueue`.
    """

    def __init__(
        self,
        round: Round,
        applying: Applying,
        monitor: Monitor,
        streams: Streams,
        trace: Trace | None,
        patience_seconds: float,
    ):
        self._round = round
        self._applying = applying
        self._monitor = monitor
        self._condition = monitor.condition
        self._streams = streams
        self._trace = trace
        self._patience_seconds = patience_seconds
        self._channels: list[ChannelQueue] = []

    def start(self, ordered: Iterable[Step]) -> None:
        """Start the threads of every queue. ordered: all messages, in issue order."""
        steps = list(ordered)
        ends = self._patience_seconds, self._landed, self._failed
        for name in dict.fromkeys(step.queue for step in steps):
            of_queue = [step for step in steps if step.queue == name]
            self._channels.append(ChannelQueue(name, of_queue, self._streams, *ends))

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

    def update(self, content: Content) -> None:
        """Run the flat update of a content that the caller has claimed."""
        with self._streams.landing():
            with torch.no_grad():
                self._applying.flat(content)
            content.updated_mark = self._streams.mark()
            with self._condition:
                content.updated = True
                content.updated_seconds = time.monotonic()
                if not content.travels:
                    self._streams.stamp(content.variables)  # before anybody finds them current
                    self._round.arrived(content.variables)
                self.pump()
                self._condition.notify_all()

    def updated(self, variables: list[Variable]) -> None:
        """Whole variables have their new values."""
        with self._condition:
            self._streams.stamp(variables)
            self._round.arrived(variables)
            self._condition.notify_all()

    def _landed(self, step: Step) -> None:
        """A message has arrived: runs on the landing thread of its channel."""
        content = step.content
        reduces = step.message.update != Update.NONE
        with torch.no_grad():
            if step.last and content.travels:
                unpack_values(content)
            elif reduces and content.whole:
                hand_back(content)
        step.ended_mark = self._streams.mark()
        if self._trace is not None:
            step.read_clock(self._streams)
            self._trace.note(self._round.iteration, step)
        if content.ranges and content.whole:  # shown as tensors that nobody need stay behind
            self._streams.finish(step.ended_mark)
        with self._condition:
            step.done = True
            self._streams.stamp(content.variables)
            stepped = self._round.phase is Phase.STEPPED
            if content.ranges and content.whole and not stepped:
                show_targets(content)
            ripe = self._round.reduced(content, stepped) if reduces else []
            if step.last and content.travels:
                self._round.arrived(content.variables)
            claimed = stepped and self._round.claim(content)
            self.pump()
            self._condition.notify_all()
        if claimed:
            self.update(content)
        if ripe:
            self._applying.deferred(ripe)
            self.updated(ripe)

    def _failed(self, error: BaseException, step: Step) -> None:
        """A message cannot arrive."""
        name = step.message.operation.name
        what = f"{name} of message {step.index} failed: {error}"
        self._monitor.fail(what, f"message {step.index}", name)
