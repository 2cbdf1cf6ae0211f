"""Process groups of a plan: opened on first request, ended together."""

import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from autosync.errors import InvalidInput
from autosync.plan.plan_table import Teams
from autosync.runtime.device.streams import HOST, Streams
from autosync.runtime.transport.nccl import new_nccl_group

CPU = torch.device("cpu")

ABORT_SECONDS = 30.0
"""How long the end of a communicator is waited for."""

DROP_SECONDS = 1.0
"""How long the end of a gloo group is waited for: as long as the longest of its operations."""


class GlooGroup:
    """torch's gloo group until it is ended: then nothing here holds it any more. It closes its
    connections when it goes, and only then do peers that wait for this rank notice."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta):
        self._made: list[Any] = [dist.ProcessGroupGloo(store, rank, size, timeout)]  # milliseconds

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self._made[0], name)
        except IndexError:
            raise dist.DistBackendError("the process group has ended") from None

    def drop(self) -> None:
        """Returns when operations in flight have ended."""
        self._made.clear()


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
        return GlooGroup(store, place, len(team), self.timeout)

    def close(self) -> None:
        """End every group; pending operations of a failed peer are aborted.

        All at once: on NCCL the end of one communicator may wait for the device, and that for a
        message of another one whose peer is gone; one of gloo waits for its operations in flight.
        """
        keys = list(self.made)  # a failing queue's thread may be closing them too
        ending = [group for key in keys if (group := self.made.pop(key, None)) is not None]
        threads = [thread for group in ending if (thread := _ending(group)) is not None]
        seconds = ABORT_SECONDS if self.backend == "nccl" else DROP_SECONDS
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _ending(group: Any) -> Thread | None:
    """The thread that ends a group. None where it is done: Python 3.12 starts no thread while the
    interpreter ends."""
    thread = Thread(target=_end, args=(group,), daemon=True)
    try:
        thread.start()
    except RuntimeError:
        _end(group)
        return None
    return thread


def _end(group: Any) -> None:
    with suppress(RuntimeError):  # it has failed already
        group.drop() if isinstance(group, GlooGroup) else group.abort()


def team_of(teams: Teams, rank: int) -> tuple[int, ...]:
    """The team that `rank` belongs to; empty when it has no part in the message."""
    for team in teams:
        if rank in team:
            return team
    return ()


def working_group(process_group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Raises InvalidInput when torch.distributed is not initialized."""
    group = process_group or dist.group.WORLD
    if group is None:
        raise InvalidInput(
            "torch.distributed is not initialized.",
            thing="process_group",
            remedy="Call torch.distributed.init_process_group first, or start with torchrun.",
        )
    return group


def open_groups(group: dist.ProcessGroup, device: torch.device | None = None) -> Groups:
    """A fresh name space for the process groups of one attached plan. device: of the model; by
    default the current GPU where the group is NCCL's, else host memory."""
    store = dist.distributed_c10d._get_default_store()
    name = f"autosync/{group.group_name}"
    times = store.add(f"{name}/attached-by-{group.rank()}", 1)
    if device is None:
        nccl = dist.get_backend(group) == "nccl"
        device = torch.device("cuda", torch.cuda.current_device()) if nccl else CPU
    backend = group._get_backend(device)
    timeout: timedelta = backend.options._timeout
    kind = "nccl" if device.type == "cuda" and backend.name() == "nccl" else "gloo"
    return Groups(PrefixStore(f"{name}/{times}", store), group.rank(), timeout, kind)
