"""Answers that never change, kept by the service itself."""

import threading
from collections import OrderedDict
from collections.abc import Callable

from autosync.units import MIB

KEPT_BYTES = 32 * MIB
LARGEST_PART = 8
"""An answer above this part of what may be kept would drive out too many others."""


class KeptAnswers:
    """Bodies by their tags; of more than `most_bytes` those go that nobody asked for longest.

    Safe to share between threads: two of them may make one answer twice, which changes nothing.
    """

    def __init__(self, most_bytes: int = KEPT_BYTES):
        self.most_bytes = most_bytes
        self.size_bytes = 0
        self._bodies: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def body(self, tag: str, make: Callable[[], str]) -> bytes:
        """What lies under the tag, made if it is not there."""
        with self._lock:
            if tag in self._bodies:
                self._bodies.move_to_end(tag)
                return self._bodies[tag]
        made = make().encode()
        if len(made) <= self.most_bytes // LARGEST_PART:
            self._keep(tag, made)
        return made

    def _keep(self, tag: str, body: bytes) -> None:
        with self._lock:
            self.size_bytes += len(body) - len(self._bodies.pop(tag, b""))
            self._bodies[tag] = body
            while self.size_bytes > self.most_bytes:
                self.size_bytes -= len(self._bodies.popitem(last=False)[1])
