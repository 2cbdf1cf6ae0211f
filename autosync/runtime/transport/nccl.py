"""Messages of fixed size on NCCL.

No two collectives of a rank are ever at work at once: the stream that issues one goes on behind
it, and all of a rank's are issued on one stream in one order. Teams differ, and so do their
communicators; but of all messages that are not done, the first in the order is the first of each
of its members, so it gets done.

A push is NCCL's reduce and a pull its broadcast: sends and receives of its own would open a
communicator for every pair of ranks. Their sums are formed in the type that travels.
"""

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, _make_nccl_premul_sum
from torch.distributed.distributed_c10d import Store

from autosync.codes import Op
from autosync.runtime.transport.base import DONE, Operation, Start, Work

WATCHDOG_GRACE = timedelta(seconds=60)
"""How much later than the runtime torch's own watchdog gives a collective up: it ends the process,
while the runtime raises."""


@dataclass(frozen=True, slots=True)
class GroupIdentity:
    """How torch's watchdog and flight recorder name a group. ranks: its members in the default
    process group, in the group's order."""

    name: str
    ranks: tuple[int, ...]


def nccl_options(made: Any, timeout: timedelta, identity: GroupIdentity) -> Any:
    """made: `ProcessGroupNCCL.Options()`. Filled in as `torch.distributed.new_group` does."""
    made._timeout = timeout + WATCHDOG_GRACE  # torch has no public name for it
    made.group_name = identity.name
    made.global_ranks_in_group = list(identity.ranks)
    return made


def new_nccl_group(
    store: Store, place: int, timeout: timedelta, device: torch.device, identity: GroupIdentity
) -> Any:
    """A connected group over each member's device. Every member calls this at the same point.

    `torch.distributed.new_group` cannot make it: every rank of the job would have to call it, also
    those of other teams and of process groups that follow another plan. Its
    `use_local_synchronization` asks the members only, but names a group by how many groups a
    process has made, and members of several teams have made different numbers.
    """
    options = nccl_options(dist.ProcessGroupNCCL.Options(), timeout, identity)
    group: Any = dist.ProcessGroupNCCL(store, place, len(identity.ranks), options)
    # The first collective connects, which takes up to seconds: not in the middle of a backward.
    hello = torch.zeros(1, device=device)
    group.allreduce([hello], dist.AllreduceOptions()).wait()
    torch.cuda.current_stream(device).synchronize()
    return group


class NcclTransport:
    """group: of NCCL, of the team. What starts an operation asks for it on the current stream,
    which goes on when the result is in place; the calling thread never waits."""

    def __init__(self, group: Any):
        self._group = group

    def adds_up(self, kind: Op) -> bool:
        return False

    def prepare(self, operation: Operation, wire: Tensor, sums: Tensor) -> Start:
        issue = self._issue(operation, wire)

        def start() -> Work:
            issue().wait()
            return DONE

        return start

    def _issue(self, operation: Operation, wire: Tensor) -> Start:
        group = self._group
        flat, padded = wire[: operation.size], wire[: operation.padded]
        mine = wire[operation.chunk(operation.place)]
        added = sum_operation(operation.share, operation.members, operation.equal_shares)
        match operation.kind:
            case Op.REDUCE | Op.PUSH:
                reduce = dist.ReduceOptions()
                reduce.rootRank = operation.root
                reduce.reduceOp = added
                return partial(group.reduce, [flat], reduce)
            case Op.BROADCAST | Op.PULL:
                broadcast = dist.BroadcastOptions()
                broadcast.rootRank = operation.root
                return partial(group.broadcast, [flat], broadcast)
            case Op.REDUCE_SCATTER:
                scatter = dist.ReduceScatterOptions()
                scatter.reduceOp = added
                return partial(group._reduce_scatter_base, mine, padded, scatter)
            case Op.ALL_GATHER:
                return partial(group._allgather_base, padded, mine, AllgatherOptions())
        options = dist.AllreduceOptions()
        options.reduceOp = added
        return partial(group.allreduce, [flat], options)


def sum_operation(share: float | None, members: int, equal_shares: bool) -> dist.ReduceOp:
    """What reductions of a team add up: its members' values as they are, or each times its share,
    which NCCL multiplies by as it reads them (16-bit, 32-bit and 64-bit floats).

    Arguments: see `Operation`. All members have to decide alike.
    """
    if share is None:
        return dist.ReduceOp(dist.ReduceOp.SUM)
    if equal_shares and share * members == 1.0:
        return dist.ReduceOp(dist.ReduceOp.AVG)
    made: dist.ReduceOp = _make_nccl_premul_sum(share)
    return made
