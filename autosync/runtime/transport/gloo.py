"""Messages of fixed size on gloo, in host memory.

Facts measured on gloo: its reduce-scatter moves an all-reduce's bytes, so ours is an all-to-all
and a local sum; `dist.reduce` goes round a ring, so a parameter server is send and receive with a
tag a message.

Where a rank adds up by itself (reduce-scatter, push), 16-bit numbers are added in float32 and
rounded once. The backend's own reductions add in the type that travels.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autosync.codes import Op
from autosync.runtime.transport.base import All, Operation, Start, Then, Work


def sum_type(values: Tensor) -> torch.dtype:
    """What sums of these values are formed in."""
    return torch.float32 if values.element_size() <= 2 else values.dtype


class GlooTransport:
    """group: of gloo, of the team. What is prepared asks it for each operation anew, for a group
    that has ended must not be held by anything."""

    def __init__(self, group: Any):
        self._group = group

    def adds_up(self, kind: Op) -> bool:
        return kind in (Op.PUSH, Op.REDUCE_SCATTER)

    def prepare(self, operation: Operation, wire: Tensor, sums: Tensor) -> Start:
        start = self._start(operation, wire, sums)
        if operation.share is None:
            return start
        multiply = partial(wire[: operation.size].mul_, operation.share)

        def multiplied() -> Work:
            multiply()
            return start()

        return multiplied

    def _start(self, operation: Operation, wire: Tensor, sums: Tensor) -> Start:
        group, flat = self._group, wire[: operation.size]
        match operation.kind:
            case Op.REDUCE:
                to_root = dist.ReduceOptions()
                to_root.rootRank = operation.root
                return lambda: group.reduce([flat], to_root)
            case Op.BROADCAST:
                from_root = dist.BroadcastOptions()
                from_root.rootRank = operation.root
                return lambda: group.broadcast([flat], from_root)
            case Op.REDUCE_SCATTER:
                padded, mine = wire[: operation.padded], sums[operation.chunk(operation.place)]
                return self._reduce_scatter(operation, padded, mine)
            case Op.ALL_GATHER:
                return self._all_gather(operation, wire)
            case Op.PUSH:
                return self._push(operation, flat, sums[: operation.size])
            case Op.PULL:
                return self._pull(operation, flat)
        options = dist.AllreduceOptions()
        return lambda: group.allreduce([flat], options)

    def _reduce_scatter(self, operation: Operation, padded: Tensor, mine: Tensor) -> Start:
        group, parts = self._group, torch.empty_like(padded)
        rows = parts.view(operation.members, -1)

        def add_up() -> None:
            if (accurate := sum_type(rows)) == mine.dtype:
                torch.sum(rows, 0, dtype=accurate, out=mine)
            else:
                mine.copy_(torch.sum(rows, 0, dtype=accurate))

        return lambda: Then(add_up, group.alltoall_base(parts, padded, [], []))

    def _all_gather(self, operation: Operation, wire: Tensor) -> Start:
        """gloo's own all-gather copies everything twice; these messages arrive in their places."""
        group, peers, tag = self._group, operation.others(), operation.tag
        chunks = [wire[operation.chunk(member)] for member in range(operation.members)]
        mine = chunks[operation.place]

        def start() -> Work:
            works = [group.recv([chunks[peer]], peer, tag) for peer in reversed(peers)]
            works += [group.send([mine], peer, tag) for peer in peers]
            return All(works)

        return start

    def _push(self, operation: Operation, flat: Tensor, sums: Tensor) -> Start:
        group, root, tag = self._group, operation.root, operation.tag
        if operation.place != root:
            return lambda: group.send([flat], root, tag)
        others = [member for member in range(operation.members) if member != root]
        received = {peer: torch.empty_like(flat) for peer in others}
        ordered = [received.get(peer, flat) for peer in range(operation.members)]

        def add_up() -> None:
            total = ordered[0].to(sum_type(flat))
            for gradient in ordered[1:]:
                total.add_(gradient)
            if total.data_ptr() != sums.data_ptr():
                sums.copy_(total)

        def start() -> Work:
            works = [group.recv([into], peer, tag) for peer, into in received.items()]
            return Then(add_up, All(works))

        return start

    def _pull(self, operation: Operation, flat: Tensor) -> Start:
        group, root, tag, peers = self._group, operation.root, operation.tag, operation.others()
        if operation.place != root:
            return lambda: group.recv([flat], root, tag)
        return lambda: All([group.send([flat], peer, tag) for peer in peers])
