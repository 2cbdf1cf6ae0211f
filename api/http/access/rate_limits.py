"""How often a client may do something: so many times a second, and a burst at once."""

import time
from collections import OrderedDict
from collections.abc import Callable

MOST_CLIENTS = 10_000
"""Remembered at once; the one that was seen least recently is forgotten first."""


class RateLimiter:
    """The generic cell rate algorithm (ITU-T I.371): a number for each client, no timers.

    burst: how many may come at once. clock: seconds that only grow.
    """

    def __init__(
        self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic
    ):
        self.interval_seconds = 1.0 / per_second
        self.slack_seconds = (burst - 1.0) / per_second
        self.clock = clock
        self._due: OrderedDict[str, float] = OrderedDict()

    def wait_seconds(self, client: str) -> float:
        """How long the client has to wait before its next one; 0 where it need not."""
        early = self._due.get(client, 0.0) - self.slack_seconds - self.clock()
        return max(early, 0.0)

    def count(self, client: str) -> None:
        """It has done it once more."""
        self._due[client] = max(self._due.get(client, 0.0), self.clock()) + self.interval_seconds
        self._due.move_to_end(client)
        if len(self._due) > MOST_CLIENTS:
            self._due.popitem(last=False)
