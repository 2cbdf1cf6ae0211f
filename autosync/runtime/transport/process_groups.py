"""Process groups of a plan, and what issues its messages of fixed size on them."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from threading import Thread
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store

from autosync.codes import Op
from autosync.plan import Plan
from autosync.plan.plan_table import Teams
from autosync.runtime.layout.records import Bucket, Finish, Start
from autosync.runtime.streams import HOST, Streams
from autosync.runtime.transport.gloo import gloo_start
from autosync.runtime.transport.nccl import nccl_start, new_nccl_group
from autosync.runtime.transport.staging import staged, staged_in_place
from autosync.runtime.transport.team_role import TeamRole

ABORT_SECONDS = 30.0
"""How long the end of a communicator is waited for."""


@dataclass(slots=True)
class Groups:
    """Builds one process group per (queue, team) on first request, and ends them all.

    store: keys are prefixed, so that plan after plan can be attached on one store. streams: of
    the device whose tensors travel.
    """

    store: Store
    rank: int
    timeout: timedelta
    backend: str = "gloo"
    made: dict[tuple[str, tuple[int, ...]], Any] = field(default_factory=dict)
    streams: Streams = HOST

    def on(self, streams: Streams) -> "Groups":
        """The same groups, for tensors of another device."""
        return replace(self, streams=streams)

    def get(self, purpose: str, team: tuple[int, ...], backend: str = "") -> Any:
        """The group of `team`, its ranks in the team's order. Every member must ask for it, in
        the same order among all its requests."""
        key = (purpose, team)
        if key not in self.made:
            name = f"{purpose}/{'-'.join(map(str, team))}"
            store = PrefixStore(name, self.store)
            self.made[key] = self._new(backend or self.backend, store, team)
        return self.made[key]

    def _new(self, backend: str, store: Store, team: tuple[int, ...]) -> Any:
        place, device = team.index(self.rank), self.streams.device
        if backend == "nccl":
            return new_nccl_group(store, place, len(team), self.timeout, device)
        return dist.ProcessGroupGloo(store, place, len(team), self.timeout)  # takes milliseconds

    def close(self) -> None:
        """End every group; pending operations of a failed peer are aborted.

        All at once: on NCCL the end of one communicator may wait for the device, and that for a
        message of another one whose peer is gone.
        """
        keys = list(self.made)  # a failing channel's thread may be closing them too
        ending = [group for key in keys if (group := self.made.pop(key, None)) is not None]
        if self.backend != "nccl":
            for group in ending:
                group.abort()
            return
        threads = [thread for group in ending if (thread := _aborting(group)) is not None]
        deadline = time.monotonic() + ABORT_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _aborting(group: Any) -> Thread | None:
    """The thread that ends a group. None where it is done: Python 3.12 starts no thread while the
    interpreter ends."""
    thread = Thread(target=_abort, args=(group,), daemon=True)
    try:
        thread.start()
    except RuntimeError:
        _abort(group)
        return None
    return thread


def _abort(group: Any) -> None:
    with suppress(RuntimeError):  # it has failed already
        group.abort()


def team_of(teams: Teams, rank: int) -> tuple[int, ...]:
    """The team that `rank` plays in; empty when it sits the message out."""
    for team in teams:
        if rank in team:
            return team
    return ()


def adds_up_itself(operation: Op, backend: str) -> bool:
    """Whether ranks, not the backend, form the sums of an operation."""
    return backend == "gloo" and operation in (Op.PUSH, Op.REDUCE_SCATTER)


def operation(
    plan: Plan, index: int, bucket: Bucket, groups: Groups, queue: str, wire: Tensor
) -> Start | None:
    """What issues message `index` on this rank; None when the rank has no part in it.

    queue: what it queues in; each has process groups of its own.
    wire: the flat tensor that travels, with padding (the bucket's buffer unless encoded). The
        result is there too, or in the bucket's buffer where ranks add up by themselves.
    """
    message = plan.messages[index]
    team = team_of(plan.teams[message.teams], groups.rank)
    if len(team) < 2:
        return None
    group = groups.get(queue, team)
    root = team.index(message.root) if message.root in team else 0
    part = TeamRole(message.operation, team.index(groups.rank), root, len(team), bucket.size, index)
    if groups.backend == "nccl":
        return nccl_start(group, part, wire)

    def on_host(host_wire: Tensor, host_sums: Tensor) -> Start:
        return gloo_start(group, part, host_wire, host_sums)

    if groups.streams.travel.staged:
        summed = adds_up_itself(message.operation, groups.backend)
        return staged(groups.streams, part, wire, bucket.buffer, on_host, summed)
    return on_host(wire, bucket.buffer)


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
        return _done

    if groups.backend == "nccl":
        return on_device
    if groups.streams.travel.staged:
        return lambda flat: staged_in_place(flat, on_host)
    return on_host


def _done() -> None:
    """The stream says when."""
