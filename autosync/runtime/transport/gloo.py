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
from autosync.runtime.transport.start_finish import Finish, Start
from autosync.runtime.transport.team_role import TeamRole


def gloo_start(group: Any, role: TeamRole, wire: Tensor, sums: Tensor) -> Start:
    """What issues the message. wire: what travels, with padding, and where the result is; sums:
    where it is instead, if ranks add up by themselves. They may be one tensor."""
    flat = wire[: role.size]
    match role.operation:
        case Op.REDUCE:
            return _reduce(group, flat, role.root)
        case Op.BROADCAST:
            return _broadcast(group, flat, role.root)
        case Op.REDUCE_SCATTER:
            return _reduce_scatter(group, role, wire[: role.padded], sums)
        case Op.ALL_GATHER:
            return _all_gather(group, role, wire)
        case Op.PUSH:
            return _push(group, role, flat, sums[: role.size])
        case Op.PULL:
            return _pull(group, role, flat)
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


def _reduce_scatter(group: Any, role: TeamRole, padded: Tensor, sums: Tensor) -> Start:
    parts, mine = torch.empty_like(padded), sums[role.chunk(role.place)]
    rows = parts.view(role.members, -1)

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


def _all_gather(group: Any, role: TeamRole, wire: Tensor) -> Start:
    """gloo's own all-gather copies everything twice; these messages land where they belong."""
    chunks = [wire[role.chunk(member)] for member in range(role.members)]
    peers, place, tag = role.others(), role.place, role.tag

    def start() -> Finish:
        works = [group.recv([chunks[peer]], peer, tag) for peer in reversed(peers)]
        works += [group.send([chunks[place]], peer, tag) for peer in peers]
        return lambda: _wait_all(works)

    return start


def sum_type(values: Tensor) -> torch.dtype:
    """What sums of these values are formed in."""
    return torch.float32 if values.element_size() <= 2 else values.dtype


def _push(group: Any, role: TeamRole, flat: Tensor, sums: Tensor) -> Start:
    root, tag = role.root, role.tag
    if role.place != root:
        return lambda: group.send([flat], root, tag).wait
    received = {peer: torch.empty_like(flat) for peer in range(role.members) if peer != root}
    ordered = [received.get(peer, flat) for peer in range(role.members)]

    def start() -> Finish:
        works = [group.recv([into], peer, tag) for peer, into in received.items()]

        def finish() -> None:
            _wait_all(works)
            total = ordered[0].to(sum_type(flat))
            for gradient in ordered[1:]:
                total.add_(gradient)
            if total.data_ptr() != sums.data_ptr():
                sums.copy_(total)

        return finish

    return start


def _pull(group: Any, role: TeamRole, flat: Tensor) -> Start:
    root, tag, peers = role.root, role.tag, role.others()
    if role.place != root:
        return lambda: group.recv([flat], root, tag).wait

    def start() -> Finish:
        works = [group.send([flat], peer, tag) for peer in peers]
        return lambda: _wait_all(works)

    return start


def _wait_all(works: list[Any]) -> None:
    for work in works:
        work.wait()
