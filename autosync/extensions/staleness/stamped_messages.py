"""Messages between two ranks that say how old they are."""

from threading import Lock
from typing import Any

import torch
from torch import Tensor

STAMP_BYTES = 8


class StampedBuffer:
    """Flat values and an integer, in one piece of memory that travels as bytes."""

    def __init__(self, size: int, dtype: torch.dtype):
        payload = -(-size * dtype.itemsize // STAMP_BYTES) * STAMP_BYTES
        self.raw = torch.zeros(payload + STAMP_BYTES, dtype=torch.uint8, device="cpu")
        self.values: Tensor = self.raw[: size * dtype.itemsize].view(dtype)
        self._stamp = self.raw[payload:].view(torch.int64)

    @property
    def stamp(self) -> int:
        return int(self._stamp)

    @stamp.setter
    def stamp(self, value: int) -> None:
        self._stamp.fill_(value)


class PeerMessages:
    """Sends and receives between pairs of ranks, in the order of each tag.

    group: of gloo, for this alone. It counts its operations without a lock of its own, and several
    threads ask for them here.
    """

    def __init__(self, group: Any):
        self._group = group
        self._lock = Lock()

    def send(self, buffer: StampedBuffer, rank: int, tag: int) -> Any:
        """What is under way, which ends once the peer has asked for it."""
        with self._lock:
            return self._group.send([buffer.raw], rank, tag)

    def receive(self, buffer: StampedBuffer, rank: int, tag: int) -> Any:
        with self._lock:
            return self._group.recv([buffer.raw], rank, tag)
