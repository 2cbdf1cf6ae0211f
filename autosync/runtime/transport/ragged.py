"""Messages whose length only their sender knows: a header of fixed size, then the payload.

The receiver asks for the payload when the header is there, so nobody waits for sizes before it
sends. Payloads are bytes in host memory: gloo moves nothing else point to point, and NCCL cannot
receive what it does not know the length of.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autosync.plan import Plan
from autosync.runtime.transport.base import All, other_places
from autosync.runtime.transport.process_groups import Groups
from autosync.runtime.transport.tensor_exchange import PackedTensors, packed

PAYLOAD_TAGS = 1 << 24
"""Above the tags of headers, which are message indices."""


Received = tuple[list[int], PackedTensors]
"""Of one sender: the counts of its header, and its tensors."""


class RaggedWork:
    """A started message. own: what this rank gives. received: by place in the team, once it has
    been waited for. sent_bytes: of this rank's payload."""

    def __init__(self, operation: "RaggedOperation", counts: Sequence[int], tensors: list[Tensor]):
        group, tag = operation.group, operation.tag
        payload = packed(tensors)
        header = torch.tensor([payload.numel(), *counts], device="cpu")
        self.own: Received = list(counts), PackedTensors(payload)
        self.received: dict[int, Received] = {}
        self.sent_bytes = payload.nbytes
        self._operation = operation
        self._headers = {peer: torch.empty_like(header) for peer in operation.senders}
        self._coming = [group.recv([self._headers[peer]], peer, tag) for peer in self._headers]
        self._sent = []
        for peer in operation.receivers:
            self._sent.append(group.send([header], peer, tag))
            if payload.numel():
                self._sent.append(group.send([payload], peer, tag + PAYLOAD_TAGS))

    def wait(self) -> None:
        group, tag = self._operation.group, self._operation.tag + PAYLOAD_TAGS
        coming = []
        for (peer, header), work in zip(self._headers.items(), self._coming, strict=True):
            work.wait()
            size, *counts = header.tolist()
            payload = torch.empty(size, dtype=torch.uint8, device="cpu")
            if size:
                coming.append(group.recv([payload], peer, tag))
            self.received[peer] = counts, PackedTensors(payload)
        All([*coming, *self._sent]).wait()


@dataclass(frozen=True, slots=True)
class RaggedOperation:
    """A message of a plan, as this rank takes part in it.

    group: of gloo, of the team; None of a rank alone. tag: of headers. place, root: in the team,
    which has `members`. receivers, senders: those that this rank sends to and receives from.
    """

    group: Any
    tag: int
    place: int
    root: int
    members: int
    receivers: list[int]
    senders: list[int]

    def start(self, counts: Sequence[int], tensors: list[Tensor]) -> RaggedWork:
        """counts: as many on every rank; they say how to read the tensors."""
        return RaggedWork(self, counts, tensors)


def ragged_operation(plan: Plan, index: int, groups: Groups, queue: str) -> RaggedOperation:
    """Message `index`; its headers and payloads travel on a group of their queue and team."""
    message = plan.messages[index]
    team = plan.team_of(message, groups.rank)
    group = None
    if len(team) > 1:
        name = queue if groups.backend == "gloo" else f"{queue}-ragged"
        group = groups.get(name, team, "gloo")
    place, members = team.index(groups.rank), len(team)
    root = team.index(message.root) if message.root in team else 0
    receivers = senders = other_places(place, members)
    if message.operation.to_owner:
        receivers, senders = ([], senders) if place == root else ([root], [])
    elif message.operation.from_owner:
        receivers, senders = (receivers, []) if place == root else ([], [root])
    return RaggedOperation(group, index, place, root, members, receivers, senders)
