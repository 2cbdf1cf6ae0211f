"""Host memory that activations wait in, used again pass after pass."""

from collections import defaultdict
from collections.abc import Callable

from torch import Tensor

from autosync.extensions.offload.host_transfers import Transfer

Held = tuple[Tensor, Transfer | None]
"""A buffer, and the transfer that used it last."""


class HostBuffers:
    """By their size: passes are alike, so that one given back fits again.

    allocate: a new one of so many bytes.
    """

    def __init__(self, allocate: Callable[[int], Tensor]) -> None:
        self._allocate = allocate
        self._free: defaultdict[int, list[Held]] = defaultdict(list)

    def take(self, size_bytes: int) -> Held:
        free = self._free[size_bytes]
        return free.pop() if free else (self._allocate(size_bytes), None)

    def give(self, buffer: Tensor, last: Transfer | None) -> None:
        self._free[buffer.numel()].append((buffer, last))
