"""One rank's part in a trial: attach a bundle to a model, warm up, measure iterations, detach.

Worker processes and the ranks of a running job use the same functions. They differ in what they run
(a replay, a registered workload, the user's own step) and in what follows a failure.
"""

import copy
import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from autosync.bundle import Bundle
from autosync.errors import AutosyncError, NotSupported
from autosync.extensions.seams import AttachedBeside, attach_beside, check_beside, engine_of
from autosync.plan import Plan
from autosync.runtime import attachment as runtime
from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.runtime.hooks.optimizer_coverage import given_optimizers
from autosync.runtime.torch_engines import add_hook, wrap_in_ddp
from autosync.runtime.transport.agreement import ranks_meet
from autosync.runtime.transport.base import SynchronizationFailed
from autosync.runtime.transport.process_groups import Groups, open_groups, working_group
from autosync.runtime.updates.clipping import clip_before_step
from autosync.torch_engine import FullyShard

MOST_GROUPS = 24
"""Process groups that a worker keeps connected for the plans to come; each holds a thread pool
and a connection to every peer, and plans with rings of their own each bring new ones."""

MOST_GPU_SHARE = 1 / 16
"""Of a GPU's memory, what the communicators of those groups may hold."""


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
        else:  # on a rank that is in no team yet, too: it must take part
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
        from autosync.runtime.torch_engines import mesh_of  # loads DTensors

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


@dataclass(slots=True)
class TrialAttachment:
    """A bundle under a model.

    model: to run forward on. detach: leaves the job's own model and optimizer as they were, their
        values updated; of the optimizer's state what some rank owned is gone on every rank.
    abandon: after a failure, let go of everything without waiting for other ranks.
    flush: finishes what is in flight.
    """

    model: nn.Module
    detach: Callable[[], None]
    abandon: Callable[[], None]
    flush: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class RunningJob:
    """What `attach` needs to know where the model is the user's own, in a running job.

    group: of all ranks, for the messages of trials. ddp_options: of DistributedDataParallel.
    """

    group: Any
    max_grad_norm: float | None = None
    ddp_options: Mapping[str, Any] | None = None


def attach(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    bundle: Bundle,
    byte_scale: float,
    groups: ReusedGroups,
    trace: ExecutionTrace | None = None,
    running: RunningJob | None = None,
) -> TrialAttachment:
    """Synchronize `model` as the bundle says, on groups that trials share, with what works
    beside the engine; on a model that stands in for another nothing does.

    trace: receives the plan's messages; engines other than the exact one add nothing to it.
    running: of a running job, whose state is put back after the trial. By default the model is a
        worker's, on the default process group.

    Raises:
        NotSupported: the optimizer, the model or the backend cannot do what the strategy asks; or
            torch's `fully_shard` would shard a running job's own parameters, which cannot be
            undone.
    """
    beside = () if isinstance(model, ShardedForm) else bundle.strategy.extensions
    check_beside(beside, model, model)
    attached = _attach(model, optimizer, bundle, byte_scale, groups, trace, running)
    try:
        for each in attach_beside(beside, model, given_optimizers(optimizer)):
            _add_beside(attached, each, keep_state=not running)
    except AutosyncError:  # an arena does not hold the model
        attached.abandon()
        raise
    return attached


def _add_beside(attached: TrialAttachment, beside: AttachedBeside, keep_state: bool) -> None:
    """Until it is detached or abandoned. keep_state: see `AttachedBeside.remove`."""

    def removed_before(let_go: Callable[[], None]) -> Callable[[], None]:
        def both() -> None:
            try:
                beside.remove(keep_state=keep_state)
            finally:
                let_go()

        return both

    attached.detach = removed_before(attached.detach)
    attached.abandon = removed_before(attached.abandon)


def _attach(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    bundle: Bundle,
    byte_scale: float,
    groups: ReusedGroups,
    trace: ExecutionTrace | None,
    running: RunningJob | None,
) -> TrialAttachment:
    plan = bundle.plan
    names = tuple(variable.name for variable in bundle.variables)
    if plan.engine == "ddp":
        return _attach_ddp(model, given_optimizers(optimizer), plan, byte_scale, running)
    if plan.sharding is not None:
        if running is not None:
            raise NotSupported(
                "torch's fully_shard cannot be tried on a running job's model: it cannot be taken "
                "off.",
                thing="plan.engine",
                value="fully_shard",
                remedy="Measure it by `autosync tune`, or give autosync.distribute its bundle.",
            )
        (only,) = given_optimizers(optimizer)
        return _attach_fully_shard(model, only, bundle, plan.sharding, groups)
    engine = engine_of(plan)
    if engine is not None and running is None:  # a running job's are refused by the engine below
        (only,) = given_optimizers(optimizer)
        other = engine.attach(
            model, only, plan, names, working_group(None), share_values=False, agreed=True
        )

        def detach_other() -> None:
            other.detach(keep_state=False)

        return TrialAttachment(model, detach_other, detach_other, other.flush)
    group = running.group if running else None
    device = next(model.parameters()).device
    attachment = runtime.attach(
        model,
        optimizer,
        plan,
        names,
        group,
        max_grad_norm=running.max_grad_norm if running else None,
        share_values=False,
        groups=groups.get(group, device) if running else groups.get(dist.group.WORLD),
        trace=trace,
        agreed=True,  # whoever leads the trials sends every rank the same plan
    )

    def detach() -> None:
        attachment.detach(keep_state=False)

    def abandon() -> None:
        monitor = attachment.engine.monitor
        with monitor.condition:
            if monitor.failure is None:
                monitor.failure = SynchronizationFailed("the trial was abandoned.")
            monitor.condition.notify_all()
        attachment.detach()
        for division in attachment.divisions:
            division.renew()

    return TrialAttachment(model, detach, abandon, attachment.engine.flush)


def _attach_ddp(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    plan: Plan,
    byte_scale: float,
    running: RunningJob | None,
) -> TrialAttachment:
    """Replicas are equal: a replay starts so, and a running job begins with its restored state."""
    group = running.group if running else None
    network = wrap_in_ddp(
        model,
        plan.bucket_bytes,
        group,
        share_values=False,
        byte_scale=byte_scale,
        options=running.ddp_options if running else None,
    )
    add_hook(network, plan, group)
    alive = weakref.ref(network)
    max_norm = running.max_grad_norm if running else None
    clips = [clip_before_step(model, one, max_norm) for one in optimizers if max_norm]

    def abandon() -> None:
        attached.model = model
        while clips:
            clips.pop().remove()
        gc.collect()  # the reducer is in a reference cycle, and its hooks live as long as it

    def detach() -> None:
        abandon()
        if running is not None and alive() is not None:
            raise NotSupported(
                "step keeps a reference to the model it was given, so torch's DDP cannot be "
                "taken off again.",
                thing="step",
                remedy="Use the model within the step only; keep the original one elsewhere.",
            )

    attached = TrialAttachment(network, detach, abandon)
    del network  # the attachment alone holds it
    return attached


def _attach_fully_shard(
    model: nn.Module,
    optimizer: Optimizer,
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

    return TrialAttachment(copied, detach, detach)
