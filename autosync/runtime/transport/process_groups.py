"""Process groups of a plan: opened on first request, ended together."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store

from autosync.errors import InvalidInput
from autosync.nccl_knobs import NcclKnobs, group_configuration
from autosync.runtime.device.streams import HOST, Streams
from autosync.runtime.transport.base import Transport, Wait
from autosync.runtime.transport.gloo import GlooTransport
from autosync.runtime.transport.nccl import (
    GroupIdentity,
    NcclTransport,
    backend_on,
    in_place,
    new_nccl_group,
)
from autosync.runtime.transport.staged import StagedTransport

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


GroupKey = tuple[str, tuple[int, ...], tuple[tuple[str, int], ...]]
"""What a group is for, its team, and what its communicator is configured with."""


@dataclass(slots=True)
class OpenGroup:
    """size_bytes: of device memory that was gone when it had been made. plan: the number of the
    last plan that asked for it."""

    group: Any
    size_bytes: int
    plan: int = 0


@dataclass(slots=True)
class Groups:
    """Builds one process group per (queue, team) on first request, and ends them all.

    store: keys are prefixed, so that plan after plan can be attached on one store. streams: of
    the device whose tensors travel. name: for torch's logs. ranks: in the default process group,
    of each rank here. device: whose memory communicators take. plan: counts the plans that are
    attached one after another. knobs: of the plan at hand, for communicators of NCCL.
    """

    store: Store
    rank: int
    timeout: timedelta
    backend: str = "gloo"
    made: dict[GroupKey, OpenGroup] = field(default_factory=dict)
    streams: Streams = HOST
    name: str = "autosync"
    ranks: tuple[int, ...] = ()
    device: torch.device = CPU
    plan: int = 0
    knobs: NcclKnobs | None = None
    generations: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)

    def on(self, streams: Streams, knobs: NcclKnobs | None = None) -> "Groups":
        """The same groups, for tensors of another device, and for a plan with these knobs."""
        return replace(self, streams=streams, knobs=knobs)

    def get(self, purpose: str, team: tuple[int, ...], backend: str = "") -> Any:
        """The group of `team`, its ranks in the team's order. Every member must ask for it, in
        the same order among all its requests."""
        backend = backend or self.backend
        configured = group_configuration(self.knobs) if self.knobs and backend == "nccl" else {}
        key = (purpose, team, tuple(configured.items()))
        if (found := self.made.get(key)) is None:
            free_bytes = free_memory_bytes(self.device)
            group = self._new(backend, purpose, team)
            taken_bytes = free_bytes - free_memory_bytes(self.device)
            found = self.made[key] = OpenGroup(group, max(0, taken_bytes))
        found.plan = self.plan
        return found.group

    def transport(self, queue: str, team: tuple[int, ...]) -> Transport:
        """What moves the messages of a queue within a team; see `get`."""
        group = self.get(queue, team)
        if self.backend == "nccl":
            return NcclTransport(group)
        host = GlooTransport(group)
        return StagedTransport(host, self.streams) if self.streams.mode.staged else host

    def _new(self, backend: str, purpose: str, team: tuple[int, ...]) -> Any:
        """In a name space of its own: those of such groups before have old keys."""
        generation = self.generations.get((purpose, team), 0) + 1
        self.generations[purpose, team] = generation
        name = f"{purpose}/{'-'.join(map(str, team))}/{generation}"
        store, place = PrefixStore(name, self.store), team.index(self.rank)
        if backend == "nccl":
            members = tuple(self.ranks[rank] for rank in team)
            identity = GroupIdentity(f"{self.name}/{name}", members)
            device = self.streams.device
            return new_nccl_group(store, place, self.timeout, device, identity, self.knobs)
        return GlooGroup(store, place, len(team), self.timeout)

    def newest_beyond(self, most: int, most_bytes: int) -> int:
        """The number of the newest plan whose groups are to end, least recently used first, so
        that this rank keeps at most so many, and no more device memory in them; -1 for none."""
        by_use = sorted(self.made.values(), key=lambda each: each.plan)
        count, size_bytes = len(by_use), sum(each.size_bytes for each in by_use)
        newest = -1
        for each in by_use:
            if count <= most and size_bytes <= most_bytes:
                break
            newest, count, size_bytes = each.plan, count - 1, size_bytes - each.size_bytes
        return newest

    def end_unused_since(self, plan: int) -> None:
        """End the groups that no plan behind this one has asked for. Every rank calls this with
        the same number; members of a group have asked for it under the same plans."""
        self._end_all([key for key, each in self.made.items() if each.plan <= plan])

    def close(self) -> None:
        """End every group; pending operations of a failed peer are aborted.

        All at once: on NCCL the end of one communicator may wait for the device, and that for a
        message of another one whose peer is gone; one of gloo waits for its operations in flight.
        """
        self._end_all(list(self.made))

    def _end_all(self, keys: list[GroupKey]) -> None:
        # A failing queue's thread may be closing them too.
        ended = [each for key in keys if (each := self.made.pop(key, None)) is not None]
        threads = [thread for each in ended if (thread := _ending(each.group)) is not None]
        seconds = ABORT_SECONDS if self.backend == "nccl" else DROP_SECONDS
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def free_memory_bytes(device: torch.device) -> int:
    """Of a GPU, whoever uses the rest; 0 of host memory, where groups take none to speak of."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else 0


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


def small_sum(
    groups: Groups, queue: str, team: tuple[int, ...], control: Any
) -> Callable[[Tensor, Wait], None]:
    """What adds up a small tensor over all ranks, in place, while no message is in flight. It waits
    for the operation by what it is given.

    On NCCL that is a collective on the device, which the current stream waits for: on the group
    of a queue that all messages go through, in their one order. Else the control group carries it
    through host memory.
    """

    def on_device(tensor: Tensor, wait: Wait) -> None:
        group = groups.get(queue, team)  # one of its own at first use
        options = dist.AllreduceOptions()
        options.asyncOp = False
        in_place(group.allreduce([tensor], options))

    def on_host(tensor: Tensor, wait: Wait) -> None:
        copy = tensor.cpu()
        wait(control.allreduce([copy], dist.AllreduceOptions()))
        tensor.copy_(copy)

    return on_device if groups.backend == "nccl" else on_host


def working_group(process_group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Raises InvalidInput when torch.distributed is not initialized, or the rank is no member."""
    group = process_group or dist.group.WORLD
    if group is None:
        raise InvalidInput(
            "torch.distributed is not initialized.",
            thing="process_group",
            remedy="Call torch.distributed.init_process_group first, or start with torchrun.",
        )
    if isinstance(group, int):  # torch's NON_GROUP_MEMBER
        raise InvalidInput(
            "this rank is not in the process group that it was given.",
            thing="process_group",
            value=group,
            remedy="Call it on the ranks of the group alone.",
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
    timeout: timedelta = group._get_backend(device).options._timeout
    kind = backend_on(group, device)
    name = f"{name}/{times}"
    ranks = tuple(dist.get_process_group_ranks(group))
    return Groups(
        PrefixStore(name, store),
        group.rank(),
        timeout,
        kind,
        name=name,
        ranks=ranks,
        device=device if kind == "nccl" else CPU,
    )
