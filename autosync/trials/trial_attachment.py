"""Puts a plan under a job's model and takes it off again."""

import copy
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from autosync.bundle import Bundle
from autosync.errors import AutosyncError
from autosync.extensions.offload.host_swapper import swap_to_host
from autosync.extensions.offload.swap_choice import Swap
from autosync.extensions.offload.swap_device import check_swappable
from autosync.extensions.staleness.lagging_attachment import attach_lagging
from autosync.extensions.staleness.lagging_groups import LaggingJob
from autosync.plan import Plan
from autosync.runtime import attachment as runtime
from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.runtime.torch_engines import add_hook, wrap_in_ddp
from autosync.runtime.transport.process_groups import Groups, open_groups, working_group
from autosync.runtime.transport.rank_agreement import ranks_meet
from autosync.torch_engine import FullyShard

MOST_GROUPS = 24
"""Process groups that a worker keeps connected for the plans to come; each holds a thread pool
and a connection to every peer, and plans with rings of their own each bring new ones."""

MOST_GPU_SHARE = 1 / 16
"""Of a GPU's memory, what the communicators of those groups may hold."""


@dataclass(frozen=True, slots=True)
class TrialAttachment:
    """model: to run forward on. flush: finishes what is in flight. detach: leaves the job's own
    model and optimizer as they were, their values updated; of the optimizer's state what some
    rank owned is gone on every rank."""

    model: nn.Module
    flush: Callable[[], None]
    detach: Callable[[], None]


@runtime_checkable
class ShardedForm(Protocol):
    """A model that stands in for another, and takes another form where parameters come and go."""

    def sharded_form(
        self, units: Sequence[Sequence[str]]
    ) -> tuple[nn.Module, list[list[nn.Module]]]:
        """A copy with the same names of parameters, and the modules that hold those of each
        unit."""
        ...


class ReusedGroups:
    """The process groups that the engine runs plan after plan on."""

    def __init__(self) -> None:
        self._groups: Groups | None = None
        self._meshes: dict[int, DeviceMesh] = {}

    def get(self, group: dist.ProcessGroup | None, device: torch.device | None = None) -> Groups:
        """A collective: every rank asks before every plan. Groups that are too many, or hold too
        much of a GPU, end on all ranks at once, least recently used first: ranks are in different
        numbers of teams, so they agree on the last plan whose groups end.

        group, device: as for `open_groups`, where no groups are open.
        """
        if self._groups is None:
            assert group is not None  # the ranks joined before their first trial
            self._groups = open_groups(group, device)
        elif self._groups.made:
            self._end_unused(self._groups)
        self._groups.plan += 1
        return self._groups

    def _end_unused(self, groups: Groups) -> None:
        newest = groups.newest_beyond(MOST_GROUPS, _most_bytes(groups.device))
        agreed = torch.tensor([newest], device="cpu")
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
        with ranks_meet():
            control = groups.get("control", tuple(range(len(groups.ranks))), "gloo")
            control.allreduce([agreed], options).wait()
        groups.end_unused_since(int(agreed))

    def mesh(self, sharding: FullyShard, device: torch.device) -> DeviceMesh:
        """Of all ranks; its process groups are opened once for each size of shard groups."""
        from autosync.runtime.torch_engines import mesh_of

        group = dist.group.WORLD
        assert group is not None
        if sharding.shard_ranks not in self._meshes:
            self._meshes[sharding.shard_ranks] = mesh_of(sharding, group, device)
        return self._meshes[sharding.shard_ranks]

    def close(self) -> None:
        if self._groups is not None:
            self._groups.close()
            self._groups = None


def _most_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    return int(torch.cuda.mem_get_info(device)[1] * MOST_GPU_SHARE)


def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    bundle: Bundle,
    byte_scale: float,
    groups: ReusedGroups,
    trace: ExecutionTrace | None = None,
) -> TrialAttachment:
    """Synchronize `model` as the bundle's plan says, on the default process group, and swap what
    the strategy does; of a model that stands in for another nothing is.

    trace: receives the plan's messages; torch's own DDP and plans that lag tell it nothing.

    Raises:
        NotSupported: the optimizer, the model or the backend cannot do what the plan asks, or
            activations are to be swapped and the model is on no GPU.
    """
    swap = None if isinstance(model, ShardedForm) else bundle.strategy.swap
    if swap is not None:
        check_swappable(model, model)
    attached = _attach(model, optimizer, bundle, byte_scale, groups, trace)
    return attached if swap is None else _with_swapping(attached, model, optimizer, swap)


def _with_swapping(
    attached: TrialAttachment, model: nn.Module, optimizer: torch.optim.Optimizer, swap: Swap
) -> TrialAttachment:
    """The same; what the strategy swaps is swapped until it is detached."""
    try:
        swapper = swap_to_host(model, swap, [optimizer])
    except AutosyncError:  # an arena does not hold the model
        attached.detach()
        raise

    def detach() -> None:
        try:
            swapper.remove()
        finally:
            attached.detach()

    return replace(attached, detach=detach)


def _attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    bundle: Bundle,
    byte_scale: float,
    groups: ReusedGroups,
    trace: ExecutionTrace | None,
) -> TrialAttachment:
    if bundle.plan.engine == "ddp":
        return _attach_ddp(model, bundle.plan, byte_scale)
    if bundle.plan.sharding is not None:
        return _attach_fully_shard(model, optimizer, bundle, bundle.plan.sharding, groups)
    names = tuple(variable.name for variable in bundle.variables)
    if bundle.plan.staleness:
        group = working_group(None)
        lagging = attach_lagging(
            LaggingJob(model, optimizer, bundle.plan, names, group, share_values=False, agreed=True)
        )
        return TrialAttachment(model, lagging.flush, lambda: lagging.detach(keep_state=False))
    attachment = runtime.attach(
        model,
        optimizer,
        bundle.plan,
        names,
        share_values=False,
        groups=groups.get(dist.group.WORLD),
        trace=trace,
        agreed=True,  # the launcher sends every rank the same line
    )
    return TrialAttachment(
        model, attachment.engine.flush, lambda: attachment.detach(keep_state=False)
    )


def _attach_ddp(model: nn.Module, plan: Plan, byte_scale: float) -> TrialAttachment:
    # replayed replicas start equal
    replicas = wrap_in_ddp(model, plan.bucket_bytes, share_values=False, byte_scale=byte_scale)
    add_hook(replicas, plan)
    held = [replicas]

    def detach() -> None:
        held.clear()
        gc.collect()  # the reducer is in a reference cycle, and its hooks live as long as it

    return TrialAttachment(replicas, lambda: None, detach)


def _attach_fully_shard(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    bundle: Bundle,
    sharding: FullyShard,
    groups: ReusedGroups,
) -> TrialAttachment:
    """torch's FSDP2 on a copy of the model, for it cannot be taken off: a trial's updates
    are lost."""
    from autosync.runtime import torch_engines

    names = [variable.name for variable in bundle.variables]
    if isinstance(model, ShardedForm):
        held: dict[int, list[str]] = {}
        for name, choice in zip(names, bundle.strategy.choices, strict=True):
            held.setdefault(sharding.unit_of(choice.variable), []).append(name)
        held.pop(len(sharding.units), None)  # the root
        copied, units = model.sharded_form(list(held.values()))
        before = dict(zip(names, map(model.get_parameter, names), strict=True))
    else:
        copied = copy.deepcopy(model)
        units = torch_engines.unit_modules(copied, sharding, {name: name for name in names})
        before = torch_engines.named_values(model)
    device = next(iter(before.values())).device
    torch_engines.apply_fully_shard(copied, units, sharding, groups.mesh(sharding, device))
    give_back = torch_engines.retarget(optimizer, before, torch_engines.named_values(copied))
    held_model = [copied]

    def detach() -> None:
        give_back()
        held_model.clear()
        gc.collect()  # its hooks and its units refer to each other

    return TrialAttachment(copied, lambda: None, detach)


def replica_digest(model: nn.Module) -> float:
    """Differs between replicas that have drifted apart: first and last element of every tensor."""
    flat = [value.detach().view(-1) for value in model.parameters()]
    return float(torch.cat([ends[:: max(1, len(ends) - 1)] for ends in flat]).double().sum())
