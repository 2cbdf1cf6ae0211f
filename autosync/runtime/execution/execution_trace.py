"""What was really executed, for measured timelines, tests and pictures."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from autosync.codes import Channel, Op

if TYPE_CHECKING:  # what only names deals loads no torch
    from autosync.runtime.layout.records import MessageRecord

DealOperation = Literal["all_to_all", "all_gather"]
"""What a deal is made of: samples or their gradients, and before them how many there are."""

SHORTEST_WAIT_SECONDS = 2e-5
"""Waits that are over at once are no events: taking and leaving the lock costs a few us."""


@dataclass(frozen=True, slots=True)
class MessageEvent:
    """One executed message; seconds on `time.monotonic()`.

    takes_part: this rank sends or receives in it. size_bytes: of this rank's payload, encoded as
        it travels; where only its sender knows what it sends, of what this rank sends.
    queued_seconds: all it waits for was there. start_seconds: its turn had come, and it was handed
        to the backend. end_seconds: its result was in this rank's buffer. Of a GPU, when it had
        come that far, not when it was asked to.
    """

    iteration: int
    message: int
    operation: Op
    channel: Channel
    bucket: int
    takes_part: bool
    queued_seconds: float
    start_seconds: float
    end_seconds: float
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DealEvent:
    """A collective of all ranks at the border of a placed module; seconds on `time.monotonic()`.

    operation: `all_to_all` of samples or their gradients, or `all_gather` of how many there are.
    sent_bytes: by this rank, to others.
    """

    operation: DealOperation
    start_seconds: float
    end_seconds: float
    sent_bytes: int


@dataclass(slots=True)
class ExecutionTrace:
    """events: in the order of completion. deals: of placed modules, in order; the script's thread
    waits for each. waits: (start, end) of each time that this thread stood still for messages,
    deals included; a GPU's stream that waits is not seen. plan_index: the place in the whole plan
    of every message that the rank knows of; None where it knows all.

    On a GPU, a trace costs some overlap: completion waits until times can be read."""

    events: list[MessageEvent] = field(default_factory=list)
    deals: list[DealEvent] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)
    plan_index: Sequence[int] | None = None

    def note(self, iteration: int, record: "MessageRecord") -> None:
        """A message has arrived."""
        message = record.message
        self.events.append(
            MessageEvent(
                iteration,
                record.index if self.plan_index is None else self.plan_index[record.index],
                message.operation,
                message.channel,
                message.bucket,
                record.start is not None,
                record.queued_seconds(),
                record.started_seconds,
                record.ended_seconds,
                record.payload_bytes(),
            )
        )

    def waited(self, begun: float) -> None:
        """The training script goes on after waiting since `begun`."""
        now = time.monotonic()
        if now - begun > SHORTEST_WAIT_SECONDS:
            self.waits.append((begun, now))

    def dealt(self, operation: DealOperation, begun: float, sent_bytes: int) -> None:
        """A deal that began then is over."""
        self.deals.append(DealEvent(operation, begun, time.monotonic(), sent_bytes))
        self.waited(begun)
