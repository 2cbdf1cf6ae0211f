"""What a rank noted of one pass: plain data, which travels from workers to their pool."""

from dataclasses import dataclass
from typing import NamedTuple

from autosync.extensions.placement.module_borders import DealOperation


class RecordedMessage(NamedTuple):
    """iteration: counted from the first of the warm-up. message: index into the shipped plan."""

    iteration: int
    message: int
    queued_seconds: float
    started_seconds: float
    ended_seconds: float


class RecordedDeal(NamedTuple):
    """Of a placed module; as `execution_trace.DealEvent`."""

    operation: DealOperation
    started_seconds: float
    ended_seconds: float
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class RecordedPass:
    """What a rank noted in one pass, on its host's `time.monotonic()`.

    forwards, backwards: when each iteration's forward and backward pass ended. waits: (begin, end)
    of where the script stood still for messages. messages: of the measured iterations; None under
    torch's own engines. deals: in order, of all iterations.
    """

    forwards: tuple[float, ...]
    backwards: tuple[float, ...]
    waits: tuple[tuple[float, float], ...]
    messages: tuple[RecordedMessage, ...] | None
    deals: tuple[RecordedDeal, ...] = ()
