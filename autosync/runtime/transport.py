"""Process groups of a plan, and each operation on them.

Facts measured on gloo: its reduce-scatter moves an all-reduce's bytes, so ours is an all-to-all
and a local sum; `dist.reduce` is a tree, so a parameter server is send and receive with a tag a
message; building a group object directly takes milliseconds.

Where a rank adds up by itself (reduce-scatter on gloo, push), halves are added in float32 and
rounded once. The backend's own reductions add in the type that travels.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions
from torch.distributed.distributed_c10d import PrefixStore, Store

from autosync.codes import Op
from autosync.errors import NotSupported
from autosync.plan import Plan
from autosync.plan.table import Teams
from autosync.runtime.records import Content, Finish

Start = Callable[[], Finish]


@dataclass(slots=True)
class Groups:
    """Builds one process group per (channel, team) on first request, and ends them all.

    store: keys are prefixed, so that plan after plan can be attached on one store.
    """

    store: Store
    rank: int
    timeout: timedelta
    backend: str = "gloo"
    made: dict[tuple[str, tuple[int, ...]], Any] = field(default_factory=dict)

    def get(self, purpose: str, team: tuple[int, ...], backend: str = "") -> Any:
        """The group of `team`, its ranks in the team's order. Every member must ask for it, in
        the same order among all its requests."""
        key = (purpose, team)
        if key not in self.made:
            name = f"{purpose}/{'-'.join(map(str, team))}"
            store = PrefixStore(name, self.store)
            self.made[key] = _new_group(
                backend or self.backend, store, team.index(self.rank), len(team), self.timeout
            )
        return self.made[key]

    def close(self) -> None:
        """End every group; pending operations of a failed peer are aborted."""
        for key in list(self.made):  # a failing channel's thread may be closing them too
            if (group := self.made.pop(key, None)) is not None:
                group.abort()


def _new_group(backend: str, store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    if backend == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, size, options)
    return dist.ProcessGroupGloo(store, rank, size, timeout)


def team_of(teams: Teams, rank: int) -> tuple[int, ...]:
    """The team that `rank` plays in; empty when it sits the message out."""
    for team in teams:
        if rank in team:
            return team
    return ()


def adds_up_itself(operation: Op, backend: str) -> bool:
    """Whether ranks, not the backend, form the sums of an operation."""
    return operation == Op.PUSH or (operation == Op.REDUCE_SCATTER and backend == "gloo")


def operation(
    plan: Plan, index: int, content: Content, groups: Groups, queue: str, wire: Tensor
) -> Start | None:
    """What issues message `index` on this rank; None when the rank has no part in it.

    queue: what it queues in; each has process groups of its own.
    wire: the flat tensor that travels, with padding (the content's buffer unless encoded). The
        result is there too, or in the content's buffer where ranks add up by themselves.

    Raises:
        NotSupported: the operation cannot run on this backend.
    """
    message = plan.messages[index]
    team = team_of(plan.teams[message.teams], groups.rank)
    if len(team) < 2:
        return None
    group = groups.get(queue, team)
    root = team.index(message.root) if message.root in team else 0
    place = team.index(groups.rank)
    flat, sums = wire[: content.size], content.buffer
    match message.operation:
        case Op.ALL_REDUCE:
            return _all_reduce(group, flat)
        case Op.REDUCE:
            return _reduce(group, flat, root)
        case Op.BROADCAST:
            return _broadcast(group, flat, root)
        case Op.REDUCE_SCATTER:
            padded = _padded(wire, content, team)
            return _reduce_scatter(group, padded, sums, place, len(team), groups.backend)
        case Op.ALL_GATHER:
            padded = _padded(wire, content, team)
            return _all_gather(group, padded, place, len(team), index, groups.backend)
        case Op.PUSH:
            return _push(group, flat, sums[: content.size], root, place, len(team), index)
        case Op.PULL:
            return _pull(group, flat, root, place, len(team), index)
        case _:
            raise NotSupported(
                f"the runtime cannot execute {message.operation.name} of message {index}.",
                thing=f"message {index}",
                value=message.operation.name,
                remedy="Choose another synchronizer for this variable.",
            )


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


def chunk_of(place: int, members: int, size: int) -> slice:
    """The even part of `size` elements, padded, that member `place` of `members` holds."""
    chunk = -(-size // members)
    return slice(place * chunk, (place + 1) * chunk)


def _padded(wire: Tensor, content: Content, team: tuple[int, ...]) -> Tensor:
    """As much of the wire as the team divides evenly."""
    return wire[: chunk_of(len(team) - 1, len(team), content.size).stop]


def _reduce_scatter(
    group: Any, padded: Tensor, sums: Tensor, place: int, size: int, backend: str
) -> Start:
    chunk = chunk_of(place, size, padded.numel())
    if backend == "nccl":
        options = dist.ReduceScatterOptions()
        return lambda: group._reduce_scatter_base(padded[chunk], padded, options).wait
    parts, mine = torch.empty_like(padded), sums[chunk]
    rows = parts.view(size, -1)

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


def _all_gather(group: Any, padded: Tensor, place: int, size: int, tag: int, backend: str) -> Start:
    chunks = [padded[chunk_of(member, size, padded.numel())] for member in range(size)]
    if backend == "nccl":
        options = AllgatherOptions()
        return lambda: group._allgather_base(padded, chunks[place], options).wait
    # gloo's own all-gather copies everything twice; these messages land where they belong.
    peers = [(place + step) % size for step in range(1, size)]

    def start() -> Finish:
        works = [group.recv([chunks[peer]], peer, tag) for peer in reversed(peers)]
        works += [group.send([chunks[place]], peer, tag) for peer in peers]
        return lambda: _wait_all(works)

    return start


def sum_type(values: Tensor) -> torch.dtype:
    """What sums of these values are formed in."""
    return torch.float32 if values.element_size() <= 2 else values.dtype


def _push(
    group: Any, flat: Tensor, sums: Tensor, root: int, place: int, size: int, tag: int
) -> Start:
    if place != root:
        return lambda: group.send([flat], root, tag).wait
    parts = {peer: torch.empty_like(flat) for peer in range(size) if peer != root}
    ordered = [parts.get(peer, flat) for peer in range(size)]

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


def _pull(group: Any, flat: Tensor, root: int, place: int, size: int, tag: int) -> Start:
    if place != root:
        return lambda: group.recv([flat], root, tag).wait
    peers = [(place + step) % size for step in range(1, size)]

    def start() -> Finish:
        works = [group.send([flat], peer, tag) for peer in peers]
        return lambda: _wait_all(works)

    return start


def _wait_all(works: list[Any]) -> None:
    for work in works:
        work.wait()
