"""One rank's part in a trial: attach a bundle to a model, warm up, measure iterations, detach.

Worker processes and the ranks of a running job use the same functions. They differ in what they run
(a replay, a registered workload, the user's own step) and in what follows a failure.
"""

import contextlib
import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from autosync.bundle import Bundle
from autosync.errors import NotSupported
from autosync.extensions.seams import AttachedBeside, attach_beside, check_beside, engine_of
from autosync.plan import Plan
from autosync.runtime import attachment as runtime
from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.runtime.hooks.optimizer_coverage import given_optimizers
from autosync.runtime.torch_engines import add_hook, wrap_in_ddp
from autosync.runtime.transport.agreement import ranks_meet
from autosync.runtime.transport.base import SynchronizationFailed
from autosync.runtime.transport.nccl import knobs_without_effect
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
        self._job_meshes: dict[int, DeviceMesh] = {}
        self._opened: list[tuple[dist.ProcessGroup, torch.device]] = []

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

    def meshes(
        self, sharding: FullyShard, device: torch.device, running: "RunningJob | None" = None
    ) -> dict[int, DeviceMesh]:
        """Of all ranks, by the sharding's group sizes; process groups are opened once for each
        size. In a running job they are its trials' own, which end with `close`."""
        from autosync.runtime.fully_shard import mesh_of, mesh_of_new_groups  # loads DTensors

        assert dist.group.WORLD is not None
        meshes = self._job_meshes if running else self._meshes
        for ranks in sharding.group_sizes:
            if ranks in meshes:
                continue
            if running is None:
                meshes[ranks] = mesh_of(ranks, dist.group.WORLD, device)
                continue
            made = mesh_of_new_groups(ranks, running.group, device, running.timeout)
            meshes[ranks], opened = made
            self._opened += [(group, device) for group in opened]
        return meshes

    def close(self) -> None:
        if self._groups is not None:
            self._groups.close()
            self._groups = None
        for mesh in self._job_meshes.values():  # DTensor's caches keep them
            getattr(mesh, "_pg_registry", {}).clear()
        self._job_meshes.clear()
        while self._opened:
            group, device = self._opened.pop()
            with contextlib.suppress(RuntimeError):  # it may have failed already
                group._get_backend(device).abort()
            dist.destroy_process_group(group)


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

    group: of all ranks, for the messages of trials. timeout: of its collectives. ddp_options: of
    DistributedDataParallel.
    """

    group: Any
    timeout: timedelta
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
            NCCL would run otherwise than the strategy says.
    """
    group: Any = running.group if running else dist.group.WORLD
    device = next(model.parameters()).device
    if (refusal := knobs_without_effect(bundle.plan, group, device)) is not None:
        raise refusal
    beside = () if isinstance(model, ShardedForm) else bundle.strategy.extensions
    check_beside(beside, model, model)
    attached = _attach(model, optimizer, bundle, byte_scale, groups, trace, running)
    try:
        for each in attach_beside(beside, model, given_optimizers(optimizer)):
            _add_beside(attached, each, keep_state=not running)
    except Exception:  # the device or the host has no room for it, for instance
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
        optimizers = given_optimizers(optimizer)
        return _attach_fully_shard(model, optimizers, bundle, plan.sharding, groups, running)
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
        try:
            attachment.detach(keep_state=False)
        finally:  # after a refusal, too: the next plan is for a whole model
            for division in attachment.divisions:
                division.renew()

    def abandon() -> None:
        monitor = attachment.engine.monitor
        with monitor.condition:
            if monitor.failure is None:
                monitor.failure = SynchronizationFailed("the trial was abandoned.")
            monitor.condition.notify_all()
        detach()

    return TrialAttachment(model, detach, abandon, attachment.engine.flush)


def _attach_ddp(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    plan: Plan,
    byte_scale: float,
    running: RunningJob | None,
) -> TrialAttachment:
    """Replicas are equal: a replay starts so, another workload is made so, and a running job begins
    with its restored state."""
    group = running.group if running else None
    network = wrap_in_ddp(
        model,
        plan.bucket_bytes,
        group,
        share_values=False,
        byte_scale=byte_scale,
        arguments=plan.ddp,
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
            raise _held_by_step("torch's DDP cannot be taken off again")

    attached = TrialAttachment(network, detach, abandon)
    del network  # the attachment alone holds it
    return attached


def _held_by_step(so: str) -> NotSupported:
    return NotSupported(
        f"step keeps a reference to the model it was given, so {so}.",
        thing="step",
        remedy="Use the model within the step only; keep the original one elsewhere.",
    )


def _attach_fully_shard(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    bundle: Bundle,
    sharding: FullyShard,
    groups: ReusedGroups,
    running: RunningJob | None,
) -> TrialAttachment:
    """torch's FSDP2 on a copy of the model, for it cannot be taken off: a trial's updates are lost.
    Of a running job the gradients and the optimizer's state leave their memory to the copy; they
    are put back after the trial."""
    from autosync.runtime import fully_shard, torch_engines

    names = [variable.name for variable in bundle.variables]
    before = fully_shard.named_values(model)
    device = before[names[0]].device
    meshes = groups.meshes(sharding, device, running)
    encoding = torch_engines.encoding_of(bundle.plan)
    if isinstance(model, ShardedForm):
        held: list[list[str]] = [[] for _ in (*sharding.units, "the root")]
        for name, choice in zip(names, bundle.strategy.choices, strict=True):
            held[sharding.unit_of(choice.variable)].append(name)
        copied, units = model.sharded_form(held[:-1])
        fully_shard.apply_fully_shard(copied, units, sharding, meshes, encoding)
    else:
        copied = fully_shard.copy_without_values(model)
        units = fully_shard.unit_modules(copied, sharding, {name: name for name in names})
        if running is not None:
            model.zero_grad()
            for optimizer in optimizers:
                optimizer.state.clear()
        fully_shard.apply_fully_shard(copied, units, sharding, meshes, encoding)
        fully_shard.take_parts(copied, before, meshes[sharding.shard_ranks])
    after = fully_shard.named_values(copied)
    alive = weakref.ref(copied)
    undone: list[Callable[[], None]] = []

    def abandon() -> None:
        attached.model = model
        while undone:
            undone.pop()()
        gc.collect()  # the copy's hooks and its units refer to each other

    def detach() -> None:
        abandon()
        if running is not None and alive() is not None:
            raise _held_by_step("the copy that was sharded cannot be freed")

    attached = TrialAttachment(copied, detach, abandon)
    try:
        for optimizer in optimizers:
            undone.append(fully_shard.retarget(optimizer, before, after))  # noqa: PERF401  # kept where one fails
    except BaseException:  # the others train the model's own values again
        abandon()
        raise
    if running is not None and (max_norm := running.max_grad_norm):
        undone += [clip_before_step(copied, each, max_norm).remove for each in optimizers]
    del copied, units, after  # the attachment alone holds them
    return attached
