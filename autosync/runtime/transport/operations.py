"""What issues a plan's messages of fixed size, chosen by backend and device at attachment."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor

from autosync.codes import Op
from autosync.plan import Plan
from autosync.runtime.transport.gloo import gloo_start
from autosync.runtime.transport.nccl import nccl_start
from autosync.runtime.transport.process_groups import Groups, team_of
from autosync.runtime.transport.staging import staged, staged_in_place
from autosync.runtime.transport.start_finish import Finish, Start, nothing_to_finish
from autosync.runtime.transport.team_role import TeamRole


def adds_up_itself(operation: Op, backend: str) -> bool:
    """Whether ranks, not the backend, form the sums of an operation."""
    return backend == "gloo" and operation in (Op.PUSH, Op.REDUCE_SCATTER)


def operation_start(
    plan: Plan, index: int, groups: Groups, queue: str, size: int, wire: Tensor, sums: Tensor
) -> Start | None:
    """What issues message `index` on this rank; None when the rank has no part in it.

    queue: what it queues in; each has process groups of its own. size: elements without padding.
    wire: the flat tensor that travels, with padding. The result is there too, or in `sums` where
        ranks add up by themselves; the two may be one tensor.
    """
    message = plan.messages[index]
    team = team_of(plan.teams[message.teams], groups.rank)
    if len(team) < 2:
        return None
    group = groups.get(queue, team)
    root = team.index(message.root) if message.root in team else 0
    role = TeamRole(message.operation, team.index(groups.rank), root, len(team), size, index)
    if groups.backend == "nccl":
        return nccl_start(group, role, wire)

    def on_host(host_wire: Tensor, host_sums: Tensor) -> Start:
        return gloo_start(group, role, host_wire, host_sums)

    if groups.streams.mode.staged:
        summed = adds_up_itself(message.operation, groups.backend)
        return staged(groups.streams, role, wire, sums, on_host, summed)
    return on_host(wire, sums)


def small_sum(
    groups: Groups, queue: str, team: tuple[int, ...], control: Any
) -> Callable[[Tensor], None]:
    """What adds up a small tensor over all ranks, in place, while no message is in flight.

    On NCCL that is a collective on the device, which the current stream waits for: on the group
    of a queue that all messages go through, in their one order. Else the control group carries it
    through host memory.
    """
    if groups.backend == "nccl":

        def on_device(tensor: Tensor) -> None:
            all_reduce_start(groups, queue, team)(tensor)()  # a group of its own at first use

        return on_device

    def on_host(tensor: Tensor) -> None:
        copy = tensor.cpu()
        control.allreduce([copy], dist.AllreduceOptions()).wait()
        tensor.copy_(copy)

    return on_host


def all_reduce_start(
    groups: Groups, queue: str, team: tuple[int, ...]
) -> Callable[[Tensor], Finish]:
    """What all-reduces a tensor that was made for one message; its size may be any."""
    group = groups.get(queue, team)

    def on_host(flat: Tensor) -> Finish:
        wait: Finish = group.allreduce([flat], dist.AllreduceOptions()).wait
        return wait

    def on_device(flat: Tensor) -> Finish:
        group.allreduce([flat], dist.AllreduceOptions()).wait()
        return nothing_to_finish

    if groups.backend == "nccl":
        return on_device
    if groups.streams.mode.staged:
        return lambda flat: staged_in_place(flat, on_host)
    return on_host
