"""Messages of fixed size on NCCL.

No two collectives of a rank are ever at work at once: each runs on the stream that issues it
(`asyncOp=False`, torch 2.8 and later), and all of a rank's are issued on one stream in one order.
torch's own streams, one a communicator, would need two events for each, and streams that share a
hardware queue with computing would hold it up. Teams differ, and so do their
communicators; but of all messages that are not done, the first in the order is the first of each
of its members, so it gets done.

A push is NCCL's reduce and a pull its broadcast: sends and receives of its own would open a
communicator for every pair of ranks. Their sums are formed in the type that travels.
"""

import ctypes
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, _make_nccl_premul_sum
from torch.distributed.distributed_c10d import Store

from autosync.codes import Op
from autosync.errors import NotSupported
from autosync.nccl_knobs import (
    TUNER_FILE_VARIABLE,
    TUNER_PLUGIN,
    NcclKnobs,
    environment_of,
    group_configuration,
    missing_variables,
    tuner_configuration,
)
from autosync.plan import Plan
from autosync.runtime.transport.base import DONE, Operation, Start, Work

WATCHDOG_GRACE = timedelta(seconds=60)
"""How much later than the runtime torch's own watchdog gives a collective up: it ends the process,
while the runtime raises."""

TUNER_FAULTS = (
    "",
    f"the file that {TUNER_FILE_VARIABLE} names states other ranges than the bundle",
    f"the file that {TUNER_FILE_VARIABLE} names cannot be read",
    f"NCCL has not loaded {TUNER_PLUGIN}",
)
"""What keeps NCCL from choosing by ranges of sizes, the most severe last."""


@dataclass(frozen=True, slots=True)
class GroupIdentity:
    """How torch's watchdog and flight recorder name a group. ranks: its members in the default
    process group, in the group's order."""

    name: str
    ranks: tuple[int, ...]


def nccl_options(
    made: Any, timeout: timedelta, identity: GroupIdentity, knobs: NcclKnobs | None = None
) -> Any:
    """made: `ProcessGroupNCCL.Options()`. Filled in as `torch.distributed.new_group` does, and with
    the knobs that a communicator's own configuration has."""
    made._timeout = timeout + WATCHDOG_GRACE  # torch has no public name for it
    made.group_name = identity.name
    made.global_ranks_in_group = list(identity.ranks)
    for name, value in group_configuration(knobs).items() if knobs else ():
        setattr(made.config, name, value)
    return made


def new_nccl_group(
    store: Store,
    place: int,
    timeout: timedelta,
    device: torch.device,
    identity: GroupIdentity,
    knobs: NcclKnobs | None = None,
) -> Any:
    """A connected group over each member's device. Every member calls this at the same point, with
    the same knobs.

    `torch.distributed.new_group` cannot make it: every rank of the job would have to call it, also
    those of other teams and of process groups that follow another plan. Its
    `use_local_synchronization` asks the members only, but names a group by how many groups a
    process has made, and members of several teams have made different numbers.
    """
    options = nccl_options(dist.ProcessGroupNCCL.Options(), timeout, identity, knobs)
    group: Any = dist.ProcessGroupNCCL(store, place, len(identity.ranks), options)
    # The first collective connects, which takes up to seconds: not in the middle of a backward.
    hello = torch.zeros(1, device=device)
    group.allreduce([hello], dist.AllreduceOptions()).wait()
    torch.cuda.current_stream(device).synchronize()
    return group


def backend_on(group: dist.ProcessGroup, device: torch.device) -> str:
    """What moves the messages of a plan for tensors of this device: nccl or gloo."""
    by_nccl = device.type == "cuda" and group._get_backend(device).name() == "nccl"
    return "nccl" if by_nccl else "gloo"


def knobs_without_effect(
    plan: Plan,
    group: dist.ProcessGroup,
    device: torch.device,
    present: Mapping[str, str] = os.environ,
) -> NotSupported | None:
    """Why NCCL does not run as the plan says; None where it does, or the plan says nothing.

    NCCL reads the environment when a process makes its first communicator, so whoever starts the
    ranks has to set it. What process groups are given needs no variables. device: of the model.
    Where ranges depend on sizes, this is a collective (`tuner_fault`).
    """
    knobs = plan.extension(NcclKnobs)
    if knobs is None:
        return None
    if (backend := backend_on(group, device)) != "nccl":
        return NotSupported(
            f"the bundle states knobs of NCCL, and messages travel by {backend} here.",
            thing="plan.nccl",
            value=backend,
            remedy='Train on GPUs with init_process_group("nccl"), or tune for this cluster.',
        )
    fault = tuner_fault(knobs, group, device, present) if knobs.by_size else ""
    missing = missing_variables(knobs, present, own_groups=plan.engine == "autosync")
    if missing:
        said = [f"{name} is {present.get(name, 'not set')!r}" for name in missing]
        stated = " ".join(f"{name}={value}" for name, value in missing.items())
        return NotSupported(
            f"NCCL does not run as the bundle says: {', '.join(said)} in this process.",
            thing=next(iter(missing)),
            value=present.get(next(iter(missing))),
            remedy=f"Start every rank with {stated} (`autosync export ID --for nccl` prints them).",
        )
    if fault:
        return NotSupported(
            f"NCCL does not run as the bundle says: on a rank, {fault}.",
            thing=TUNER_FILE_VARIABLE,
            value=present.get(TUNER_FILE_VARIABLE),
            remedy="Build the example (plugins/tuner/example) from the sources of the NCCL that "
            "torch loads, and put its folder on LD_LIBRARY_PATH of every rank. `autosync export ID "
            "--for nccl -o FILE` writes the file; trials write their own.",
        )
    return None


def tuner_fault(
    knobs: NcclKnobs, group: Any, device: torch.device, present: Mapping[str, str] = os.environ
) -> str:
    """Of TUNER_FAULTS, the worst that a rank of the process group has. A collective on NCCL, with
    whose first communicator a process loads the plugin.

    NCCL goes on without a plugin that it cannot load or that is for another version of NCCL, and
    the example plugin without a file that it cannot read. Neither raises an error.
    """
    dist.all_reduce(torch.zeros(1, device=device), group=group)
    own = torch.tensor(_own_tuner_fault(knobs, present), device=device)
    dist.all_reduce(own, dist.ReduceOp.MAX, group=group)
    return TUNER_FAULTS[int(own)]


def _own_tuner_fault(knobs: NcclKnobs, present: Mapping[str, str]) -> int:
    """The place in TUNER_FAULTS."""
    if not is_loaded(TUNER_PLUGIN):
        return 3
    try:
        stated = Path(present.get(TUNER_FILE_VARIABLE, "")).read_text(errors="replace")
    except OSError:
        return 2
    return int(_tuner_lines(stated) != _tuner_lines(tuner_configuration(knobs)))


def is_loaded(library: str) -> bool:
    """Whether this process has a shared library open. This does not load it: NCCL closes a plugin
    for another version of NCCL, which a handle of this process would keep open."""
    try:
        ctypes.CDLL(library, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return False
    return True


def _tuner_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def variables_to_compare(plan: Plan) -> dict[str, object]:
    """Of this process, those that the plan's knobs are about: ranks whose NCCL chooses by different
    ones may wait for each other for ever. A tuner's file may lie elsewhere on each host."""
    knobs = plan.extension(NcclKnobs)
    names = environment_of(knobs) if knobs is not None else ()
    return {name: os.environ.get(name) for name in names if name != TUNER_FILE_VARIABLE}


class NcclTransport:
    """group: of NCCL, of the team. What starts an operation asks for it on the current stream; the
    calling thread never waits."""

    def __init__(self, group: Any):
        self._group = group

    def adds_up(self, kind: Op) -> bool:
        return False

    def prepare(self, operation: Operation, wire: Tensor, sums: Tensor) -> Start:
        issue = self._issue(operation, wire)

        def start() -> Work:
            in_place(issue())
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
                reduce.asyncOp = False
                return partial(group.reduce, [flat], reduce)
            case Op.BROADCAST | Op.PULL:
                broadcast = dist.BroadcastOptions()
                broadcast.rootRank = operation.root
                broadcast.asyncOp = False
                return partial(group.broadcast, [flat], broadcast)
            case Op.REDUCE_SCATTER:
                scatter = dist.ReduceScatterOptions()
                scatter.reduceOp = added
                scatter.asyncOp = False
                return partial(group._reduce_scatter_base, mine, padded, scatter)
            case Op.ALL_GATHER:
                gather = AllgatherOptions()
                gather.asyncOp = False
                return partial(group._allgather_base, padded, mine, gather)
        options = dist.AllreduceOptions()
        options.reduceOp = added
        options.asyncOp = False
        return partial(group.allreduce, [flat], options)


def in_place(work: Any) -> None:
    """The current stream goes on when a collective on it is done. work: of `asyncOp=False`, where
    NCCL has none."""
    if work is not None:
        work.wait()


def sum_operation(share: float | None, members: int, equal_shares: bool) -> dist.ReduceOp:
    """What reductions of a team add up: its members' values as they are, or each times its share,
    which NCCL multiplies by as it reads them (16-bit, 32-bit and 64-bit floats).

    Arguments: see `Operation`. All members have to decide alike.
    """
    if share is None:
        return dist.ReduceOp(dist.ReduceOp.SUM)
    if equal_shares and math.isclose(share * members, 1.0):  # 1 / 49 * 49 is less than 1
        return dist.ReduceOp(dist.ReduceOp.AVG)
    made: dist.ReduceOp = _make_nccl_premul_sum(share)
    return made
