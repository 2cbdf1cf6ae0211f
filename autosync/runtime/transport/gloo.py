"""Messages of fixed size on gloo, in host memory.

Facts measured on gloo: its reduce-scatter moves an all-reduce's bytes, so ours is an all-to-all
and a local sum; `dist.reduce` goes round a ring, so a parameter server is send and receive with a
tag a message.

Where a rank adds up by itself (reduce-scatter, push), halves are added in float32 and rounded
once. The backend's own reductions add in the type that travels.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autosync.codes import Op
from autosync.runtime.layout.records import Finish, Start
from autosync.runtime.transport.team_role import TeamRole


def gloo_start(group: Any, part: TeamRole, wire: Tensor, sums: Tensor) -> Start:
    """What issues the message. wire: what travels, with padding, and where the result is; sums:
    where it is instead, if ranks add up by themselves. They may be one tensor."""
    flat = wire[: part.size]
    match part.operation:
        case Op.REDUCE:
            return _reduce(group, flat, part.root)
        case Op.BROADCAST:
            return _broadcast(group, flat, part.root)
        case Op.REDUCE_SCATTER:
            return _reduce_scatter(group, part, wire[: part.padded], sums)
        case Op.ALL_GATHER:
            return _all_gather(group, part, wire)
        case Op.PUSH:
            return _push(group, part, flat, sums[: part.size])
        case Op.PULL:
            return _pull(group, part, flat)
    return _all_reduce(group, flat)


def _all_reduce(group: Any, flat: Tensor) -> Start:
    options, tensors = dist.AllreduceOptions(), [flat]
    return lambda: group.allreduce(tensors, options).wait


def _reduce(group: Any, flat: Tensor, root: int) -> Start:
    options, tensors = dist.ReduceOptions(), [flat]
    options.rootRank = root
    return lambda: group.reduce(tensors, options).wait


def _broadcast(group: Any, flat: Tensor, root: int) -> Start:
    options, tensors = dist.BroadcastOptions(), [flat]
    options.rootRank = root
    return lambda: group.broadcast(tensors, options).wait


def _reduce_scatter(group: Any, part: TeamRole, padded: Tensor, sums: Tensor) -> Start:
    parts, mine = torch.empty_like(padded), sums[part.chunk(part.place)]
    rows = parts.view(part.members, -1)

    def start() -> Finish:
        work = group.alltoall_base(parts, padded, [], [])

        def finish() -> None:
            work.wait()
            if (accurate := sum_type(rows)) == mine.dtype:
                torch.sum(rows, 0, dtype=accurate, out=mine)
            else:
                mine.copy_(torch.sum(rows, 0, dtype=accurate))

        return finish

    return start


def _all_gather(group: Any, part: TeamRole, wire: Tensor) -> Start:
    """gloo's own all-gather copies everything twice; these messages land where they belong."""
    chunks = [wire[part.chunk(member)] for member in range(part.members)]
    peers, place, tag = part.others(), part.place, part.tag

    def start() -> Finish:
        works = [group.recv([chunks[peer]], peer, tag) for peer in reversed(peers)]
        works += [group.send([chunks[place]], peer, tag) for peer in peers]
        return lambda: _wait_all(works)

    return start


def sum_type(values: Tensor) -> torch.dtype:
    """What sums of these values are formed in."""
    return torch.float32 if values.element_size() <= 2 else values.dtype


def _push(group: Any, part: TeamRole, flat: Tensor, sums: Tensor) -> Start:
    root, tag = part.root, part.tag
    if part.place != root:
        return lambda: group.send([flat], root, tag).wait
    parts = {peer: torch.empty_like(flat) for peer in range(part.members) if peer != root}
    ordered = [parts.get(peer, flat) for peer in range(part.members)]

    def start() -> Finish:
        works = [(peer, group.recv([part], peer, tag)) for peer, part in parts.items()]

        def finish() -> None:
            for _, work in works:
                work.wait()
            total = ordered[0].to(sum_type(flat))
            for part in ordered[1:]:
                total.add_(part)
            if total.data_ptr() != sums.data_ptr():
                sums.copy_(total)

        return finish

    return start


def _pull(group: Any, part: TeamRole, flat: Tensor) -> Start:
    root, tag, peers = part.root, part.tag, part.others()
    if part.place != root:
        return lambda: group.recv([flat], root, tag).wait

    def start() -> Finish:
        works = [group.send([flat], peer, tag) for peer in peers]
        return lambda: _wait_all(works)

    return start


def _wait_all(works: list[Any]) -> None:
    for work in works:
        work.wait()
