"""When all-gathers leave that a schedule keeps for an idle wire.

Each rank decides by itself, and none waits for ever: a first half waits for gradients and for other
first halves only, so every rank gets through its own, whatever is kept back. After the last one
nothing is kept back any more.
"""

from autosync.codes import Channel
from autosync.runtime.layout.records import ONE_QUEUE, MessageRecord


class IdleWire:
    """Counts the messages in flight: first halves, and those that wait for an idle wire. Every
    method is called with the monitor's lock held."""

    def __init__(self) -> None:
        self._first_halves = 0
        self.rewind()

    def add(self, record: MessageRecord) -> None:
        """A message of the plan, before any has left."""
        self._first_halves += _is_first_half(record)
        self.rewind()

    def rewind(self) -> None:
        """A new iteration begins; nothing is in flight."""
        self._missing = self._first_halves
        self._first_in_flight = 0
        self._waiting_in_flight = 0

    def may_leave(self, record: MessageRecord) -> bool:
        """Whether a message whose turn has come leaves now: one that waits for an idle wire, while
        neither a first half nor another of its kind is in flight, or all first halves landed."""
        if not waits_for_idle_wire(record) or not self._missing:
            return True
        return not (self._first_in_flight or self._waiting_in_flight)

    def left(self, record: MessageRecord) -> None:
        self._count(record, 1)

    def landed(self, record: MessageRecord) -> None:
        self._count(record, -1)
        self._missing -= _is_first_half(record)

    def _count(self, record: MessageRecord, change: int) -> None:
        if waits_for_idle_wire(record):
            self._waiting_in_flight += change
        elif _is_first_half(record):
            self._first_in_flight += change


def waits_for_idle_wire(record: MessageRecord) -> bool:
    """Not where one queue holds everything: its order decides, for one that is kept back would
    hold up the first halves behind it."""
    return record.message.channel == Channel.GATHER and record.queue != ONE_QUEUE


def _is_first_half(record: MessageRecord) -> bool:
    """It waits neither for an idle wire nor for `step()`, which each rank reaches when it may."""
    return not (waits_for_idle_wire(record) or record.message.carries_values)
