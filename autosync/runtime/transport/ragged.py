"""Messages whose length only their sender knows: a header of fixed size, then the payload.

The receiver asks for the payload when the header is there, so nobody waits for sizes before it
sends. Payloads are bytes in host memory: gloo moves nothing else point to point, and NCCL cannot
receive what it does not know the length of.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from autosync.runtime.transport.process_groups import Groups

PAYLOAD_TAGS = 1 << 24
"""Above the tags of headers, which are message indices."""

Received = dict[int, tuple[Tensor, Tensor]]
"""By sender (its place in the team): header i64[n] and payload u8[bytes]."""


def ragged_group(groups: Groups, queue: str, team: tuple[int, ...]) -> Any:
    """The process group that headers and payloads of a queue travel on."""
    if groups.backend == "gloo":
        return groups.get(queue, team)
    return groups.get(f"{queue}-ragged", team, "gloo")


def exchange(
    group: Any,
    tag: int,
    receivers: Iterable[int],
    senders: Iterable[int],
    header: Tensor,
    payload: Tensor,
) -> Callable[[], Received]:
    """Send header and payload to all receivers; what is returned waits for those of the senders.

    header: i64[n], its first entry is the length of the payload in bytes; n is known to all.
    """
    headers = {peer: torch.empty_like(header) for peer in senders}
    works = [group.recv([headers[peer]], peer, tag) for peer in headers]
    sent = []
    for peer in receivers:
        sent.append(group.send([header], peer, tag))
        if payload.numel():
            sent.append(group.send([payload], peer, tag + PAYLOAD_TAGS))

    def finish() -> Received:
        found: Received = {}
        coming = []
        for (peer, known), work in zip(headers.items(), works, strict=True):
            work.wait()
            found[peer] = known, torch.empty(int(known[0]), dtype=torch.uint8, device="cpu")
            if known[0]:
                coming.append(group.recv([found[peer][1]], peer, tag + PAYLOAD_TAGS))
        for work in [*coming, *sent]:
            work.wait()
        return found

    return finish


def others(place: int, size: int) -> list[int]:
    """Every other place of a team, the next one first."""
    return [(place + step) % size for step in range(1, size)]


def as_bytes(tensors: list[Tensor]) -> Tensor:
    """Their values one after another, in host memory."""
    parts = [t.detach().cpu().contiguous().view(-1).view(torch.uint8) for t in tensors]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8, device="cpu")


class Reader:
    """Takes tensors out of a payload in the order in which `as_bytes` put them in."""

    def __init__(self, payload: Tensor):
        self._payload = payload
        self._place = 0

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        count = dtype.itemsize * math.prod(shape)
        part = self._payload[self._place : self._place + count]
        self._place += count
        if part.storage_offset() % dtype.itemsize:  # no place for a view of that type
            part = part.clone()
        return part.view(dtype).view(shape)
