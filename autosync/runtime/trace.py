"""What was really executed, for tests and pictures."""

from dataclasses import dataclass, field

from autosync.codes import Channel, Op


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

    def issued(self, iteration: int) -> list[int]:
        """Messages of an iteration in the order in which they were started."""
        of = [event for event in self.events if event.iteration == iteration]
        return [event.message for event in sorted(of, key=lambda event: event.start_seconds)]
