"""What was really executed, for tests and pictures."""

import time
from dataclasses import dataclass, field

from autosync.codes import Channel, Op
from autosync.runtime.records import Step


@dataclass(frozen=True, slots=True)
class Event:
    """One executed message; seconds on `time.monotonic()`. size_bytes: of this rank's payload."""

    iteration: int
    message: int
    operation: Op
    channel: Channel
    content: int
    start_seconds: float
    end_seconds: float
    size_bytes: int


@dataclass(slots=True)
class Trace:
    """events: in the order of completion."""

    events: list[Event] = field(default_factory=list)

    def note(self, iteration: int, step: Step) -> None:
        """A message has just arrived."""
        message, buffer = step.message, step.content.buffer
        self.events.append(
            Event(
                iteration,
                step.index,
                message.operation,
                message.channel,
                message.content,
                step.started_seconds,
                time.monotonic(),
                step.content.size * buffer.element_size() if step.start else 0,
            )
        )

    def issued(self, iteration: int) -> list[int]:
        """Messages of an iteration in the order in which they were started."""
        of = [event for event in self.events if event.iteration == iteration]
        return [event.message for event in sorted(of, key=lambda event: event.start_seconds)]
