"""What issues a plan's messages of fixed size, chosen by backend and device at attachment."""

from collections.abc import Callable
from typing import Any

import torch
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


def multiplies_by_shares(plan: Plan, index: int, values: Tensor, groups: Groups) -> bool:
    """Whether message `index`, the first of a bucket of gradients, multiplies what each rank brings
    by its share as it adds up: one that forms the sum of all ranks, unencoded, on NCCL, which reads
    the values anyway. All ranks decide alike.

    NCCL takes any shares of float16, float32 and float64, and equal ones of every type.
    """
    message = plan.messages[index]
    everyone = [len(team) for team in plan.teams[message.teams]] == [plan.world_size]
    alike = len(set(plan.shares)) == 1
    takes = alike or values.dtype in (torch.float16, torch.float32, torch.float64)
    adds_up = message.operation in (Op.ALL_REDUCE, Op.REDUCE, Op.REDUCE_SCATTER, Op.PUSH)
    unencoded = adds_up and not message.encoding and plan.world_size > 1
    return groups.streams.mode.one_order and unencoded and everyone and takes


def operation_start(
    plan: Plan,
    index: int,
    groups: Groups,
    queue: str,
    size: int,
    wire: Tensor,
    sums: Tensor,
    share: float | None = None,
) -> Start | None:
    """What issues message `index` on this rank; None when the rank has no part in it.

    queue: what it queues in; each has process groups of its own. size: elements without padding.
    wire: the flat tensor that travels, with padding. The result is there too, or in `sums` where
        ranks add up by themselves; the two may be one tensor.
    share: what a reduction multiplies this rank's values by; None where they are multiplied.
    """
    message = plan.messages[index]
    team = team_of(plan.teams[message.teams], groups.rank)
    if len(team) < 2:
        return None
    group = groups.get(queue, team)
    root = team.index(message.root) if message.root in team else 0
    role = TeamRole(message.operation, team.index(groups.rank), root, len(team), size, index)
    if groups.backend == "nccl":
        return nccl_start(group, role, wire, share, alike=len(set(plan.shares)) == 1)

    def on_host(host_wire: Tensor, host_sums: Tensor) -> Start:
        return gloo_start(group, role, host_wire, host_sums)

    if groups.streams.mode.staged:
        summed = adds_up_itself(message.operation, groups.backend)
        return staged(groups.streams, role, wire, sums, on_host, summed)
    start = on_host(wire, sums)
    return start if share is None else _multiplied(start, wire[:size], share)


def _multiplied(start: Start, values: Tensor, share: float) -> Start:
    """As NCCL does, for a backend that does not."""

    def issue() -> Finish:
        values.mul_(share)
        return start()

    return issue


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
