"""`autosync.distribute`, the two lines in the training script, and `autosync.detach`."""

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from weakref import finalize

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from autosync.bundle import Bundle, load_bundle
from autosync.environment import host_name
from autosync.errors import InvalidInput, NotSupported
from autosync.extensions.registry import verification_of
from autosync.extensions.seams import (
    AttachedEngine,
    attach_beside,
    beside_ddp,
    check_beside,
    engine_of,
)
from autosync.plan import Plan
from autosync.runtime.attached_models import ATTACHED, WrappedByDdp, check_plain, check_unwrapped
from autosync.runtime.attachment import attach
from autosync.runtime.bundle_fit import (
    changes_anywhere,
    check_averages_evenly,
    model_names,
    variable_changes,
)
from autosync.runtime.compression.half import check_lossless
from autosync.runtime.device.model_tensors import check_own_places, device_of
from autosync.runtime.device.streams import on_device
from autosync.runtime.drift_watch import OnDrift, watch_iterations
from autosync.runtime.fully_shard import (
    apply_fully_shard,
    check_shardable,
    mesh_of,
    named_values,
    retarget,
    unit_modules,
)
from autosync.runtime.hooks.model_hooks import Removable
from autosync.runtime.hooks.optimizer_coverage import (
    CoverageGuard,
    check_held,
    given_optimizers,
    warn_renormalized,
    warn_unheld,
)
from autosync.runtime.hooks.torch_compile import compiled_from, warn_if_compiled
from autosync.runtime.torch_engines import (
    OF_UNUSED,
    add_hook,
    check_norm_is_global,
    check_options,
    check_takes_bucket_lists,
    check_unsharded,
    comparable,
    encoding_of,
    for_any_plan,
    wrap_in_ddp,
)
from autosync.runtime.transport.agreement import (
    RankReport,
    agreed_everywhere,
    exchange_reports,
    given_to,
    ranks_meet,
    refused_everywhere,
)
from autosync.runtime.transport.base import SynchronizationFailed
from autosync.runtime.transport.nccl import backend_on, knobs_without_effect, variables_to_compare
from autosync.runtime.transport.process_groups import working_group
from autosync.runtime.transport.tensor_exchange import share_initial_values, tensor_signatures
from autosync.runtime.updates.clipping import check_max_norm, clip_before_step, clipping_of_several
from autosync.runtime.updates.optimizers import check_one_backward, warn_if_together

log = logging.getLogger("autosync")

Given = Optimizer | Sequence[Optimizer]
"""The optimizer of a model, or several that hold different parameters of it."""

Optimizers = TypeVar("Optimizers", bound=Optimizer | Sequence[Optimizer])


def distribute(
    model: nn.Module,
    optimizer: Optimizers,
    bundle: Bundle | str | Path,
    process_group: dist.ProcessGroup | None = None,
    max_grad_norm: float | None = None,
    allow_lossy: bool = False,
    ddp_options: Mapping[str, Any] | None = None,
    allow_inexact: bool = False,
    on_drift: OnDrift | None = None,
) -> tuple[nn.Module, Optimizers]:
    """Train as the bundle says: returns the model and the optimizer to go on with.

    The model comes back as the same object (with hooks), unless the bundle says torch's DDP or
    no longer fits: then it is wrapped in DistributedDataParallel, with a warning in the latter
    case. Where it says torch's `fully_shard`, the model's parameters are DTensors from then on.
    optimizer: of the model, or a list of several that hold different parameters of it; the same
    comes back. process_group: of the replicas, by default all ranks; of a DeviceMesh that is
    `mesh["dp"].get_group()`. max_grad_norm: clip by the true global norm before every update,
    where the process group is all ranks. allow_lossy: start a plan whose messages are packed with
    loss (fp16, bf16, PowerSGD). ddp_options: of DistributedDataParallel, where that is used
    (`find_unused_parameters`, `device_ids`, ...). allow_inexact: start a plan whose updates may be
    some iterations late. on_drift: called on every rank where its iterations have become
    longer than the bundle says, which rank 0 logs in any case.

    Raises:
        InvalidInput: there is no such bundle, ranks were given different ones, an option is none
            of DistributedDataParallel's, or torch.distributed is not initialized; the model or an
            optimizer is distributed already; an optimizer trains what is not the model's. On every
            rank, whichever finds it.
        NotSupported: the optimizer cannot be applied to parts of variables, as the plan needs, the
            plan is lossy or lags and that is not allowed, or an option of DDP's contradicts the
            plan; the bundle no longer fits, and its shares are uneven; the model is sharded by FSDP
            or tensor parallelism; an extension cannot work on the model, because it is compiled,
            say.
    """
    group = working_group(process_group)
    network = compiled_from(model)
    options = dict(ddp_options or {})
    parameter = next(network.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    with refused_everywhere(group, device):
        optimizers = given_optimizers(optimizer)
        check_distributable(network, optimizers)
        check_max_norm(max_grad_norm)
        check_norm_is_global(max_grad_norm, group)
        backend = backend_on(group, device)
        shipped = bundle if isinstance(bundle, Bundle) else load_bundle(bundle)
        check_options(options, shipped.plan.engine)
        if shipped.plan.ddp is not None and shipped.plan.ddp.bucket_limits_bytes:
            check_takes_bucket_lists()
        if shipped.plan.engine == "autosync":
            check_one_backward(optimizers)
        for entry in shipped.strategy.extensions:
            verification_of(entry.key).check_strategy(shipped.strategy)
        extensions, change = shipped.strategy.extensions, variable_changes(shipped, network)
        check_beside(beside_ddp(extensions) if change else extensions, network, model)
    warn_unheld(network, optimizers)
    warn_renormalized(network)
    arguments = {
        "max_grad_norm": max_grad_norm,
        "allow_lossy": allow_lossy,
        "allow_inexact": allow_inexact,
        **comparable(options),
        **variables_to_compare(shipped.plan),
        "backend for the model's device": backend,
    }
    mine = RankReport(
        host_name(),
        change=change,
        given=given_to(shipped, arguments),
        tensors=tensor_signatures(network),
    )
    reports = exchange_reports(mine, group, device)
    changed = changes_anywhere(shipped, reports)
    if changed:
        extensions = beside_ddp(extensions)
        check_averages_evenly(shipped, changed, len(reports))
        message = f"the bundle does not fit this job, so torch's DDP is used: {changed}."
        warnings.warn(message, stacklevel=2)
        log.warning(message)

    def beside() -> list[Removable]:
        """What a bundle puts on a model whichever engine synchronizes it: on every rank, or on
        none. A collective."""
        logs = group.rank() == 0
        put: list[Removable] = []
        try:
            with agreed_everywhere(group, device):
                put.append(watch_iterations(optimizers[-1], shipped, bool(changed), logs, on_drift))
                put += attach_beside(extensions, network, optimizers)
        except Exception:  # whatever an extension or a peer raises: nothing stays on the model
            _remove(put)
            raise
        return put

    if changed:
        options = options if shipped.plan.engine == "ddp" else for_any_plan(options)
        return in_ddp(model, optimizer, max_grad_norm, None, group, options, beside), optimizer
    if not allow_lossy:
        check_lossless(shipped.plan)
    slower = knobs_without_effect(shipped.plan, group, device)
    if slower is not None and group.rank() == 0:  # variables are alike on all ranks
        message = f"{slower} Training is as right without, and may be slower than measured."
        warnings.warn(message, stacklevel=2)
        log.warning(message)
    if shipped.plan.engine == "ddp":
        plan = shipped.plan
        return in_ddp(model, optimizer, max_grad_norm, plan, group, options, beside), optimizer
    names = model_names(shipped, network)
    if shipped.plan.sharding is not None:
        ignored = [each for each in OF_UNUSED if options.get(each)]
        if ignored and group.rank() == 0:
            message = (
                f"ddp_options: {', '.join(ignored)} has no effect under fully_shard: in every "
                "iteration all ranks must reach the same parameters. Else keep DDP or a plan."
            )
            warnings.warn(message, stacklevel=2)
            log.warning(message)
        _shard(network, optimizers, shipped, names, group, device, max_grad_norm)
        beside()
        return model, optimizer
    with agreed_everywhere(group, device):
        device_of(network)
        check_own_places(network)
    warn_if_compiled(model)
    if (engine := engine_of(shipped.plan)) is not None:
        engine.check(shipped.plan, allow_inexact, len(optimizers))
        other = engine.attach(
            network,
            optimizers[0],
            shipped.plan,
            names,
            group,
            max_grad_norm=max_grad_norm,
            agreed=True,
        )
        _add_beside(other, beside)
        return model, optimizer
    if shipped.plan.overlap_forward:
        warn_if_together(optimizers)
    attachment = attach(
        network,
        optimizer,
        shipped.plan,
        names,
        group,
        max_grad_norm=max_grad_norm,
        agreed=True,
        called=model,
    )
    _add_beside(attachment, beside)
    return model, optimizer


def _add_beside(attached: AttachedEngine, beside: Callable[[], list[Removable]]) -> None:
    """Where it cannot be added, every rank takes the plan off."""
    try:
        attached.handles += beside()
    except Exception:  # it is raised again, once the plan is off
        with suppress(SynchronizationFailed):  # a peer is lost, too: the plan is off all the same
            attached.detach()
        raise


def _remove(handles: Sequence[Removable]) -> None:
    for handle in handles:
        handle.remove()


def check_distributable(model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Raises InvalidInput where the model or an optimizer is distributed already, or an optimizer
    trains what is not the model's."""
    check_plain(model, optimizers)
    check_unwrapped(model)
    check_unsharded(model)
    check_held(model, optimizers)


def in_ddp(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    max_grad_norm: float | None,
    plan: Plan | None,
    group: dist.ProcessGroup,
    options: Mapping[str, Any],
    beside: Callable[[], list[Removable]],
) -> nn.Module:
    """The model in torch's DDP, as `autosync.detach` finds it. plan: DDP's own; None for DDP as it
    comes."""
    given = given_optimizers(optimizer)
    if max_grad_norm and len(given) > 1:
        raise clipping_of_several()
    bucket_bytes = plan.bucket_bytes if plan else 0
    network = compiled_from(model)
    trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
    within = trained if max_grad_norm else None
    guard = CoverageGuard(network, given, trained.values(), within_steps=within)
    arguments = plan.ddp if plan else None
    made = wrap_in_ddp(model, bucket_bytes, group, arguments=arguments, options=options)
    if plan is not None:
        add_hook(made, plan, group)
    handles = [*beside(), *guard.watch_steps()]
    if max_grad_norm:
        others = guard.watch_others()
        finalize(made, others.remove)  # torch keeps it for every optimizer of the process
        handles += [clip_before_step(model, given[0], max_grad_norm), others]
    ATTACHED.wrapped[made] = WrappedByDdp(optimizer, tuple(handles))
    return made


def _shard(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    shipped: Bundle,
    names: tuple[str, ...],
    group: dist.ProcessGroup,
    device: torch.device,
    max_grad_norm: float | None,
) -> None:
    """Put torch's FSDP2 on the model, and its parts of parameters into the optimizers.

    names: of the bundle's variables in the model.
    """
    sharding = shipped.plan.sharding
    assert sharding is not None
    with agreed_everywhere(group, device):
        check_shardable(model, optimizers, sharding, group)
        if max_grad_norm and len(optimizers) > 1:
            raise clipping_of_several()
        planned = (variable.name for variable in shipped.variables)
        units = unit_modules(model, sharding, dict(zip(planned, names, strict=True)))
    with ranks_meet(), on_device(device):
        share_initial_values(group, model, group)
    before = named_values(model)
    meshes = {ranks: mesh_of(ranks, group, device) for ranks in sharding.group_sizes}
    with agreed_everywhere(group, device):  # one may lack memory for it
        apply_fully_shard(model, units, sharding, meshes, encoding_of(shipped.plan))
        after = named_values(model)
        for optimizer in optimizers:
            retarget(optimizer, before, after)
            if max_grad_norm:
                clip_before_step(model, optimizer, max_grad_norm)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    within = trained if max_grad_norm else None
    guard = CoverageGuard(model, optimizers, trained.values(), before, within, exchanges=True)
    guard.watch_steps()
    finalize(model, guard.watch_others().remove)  # `detach` refuses: nothing else removes it
    ATTACHED.sharded.add(model)


def detach(model: nn.Module) -> tuple[nn.Module, Any]:
    """Take the plan off, or torch's DDP that `distribute` put around the model: returns the plain
    model, and the optimizer (or the list of them) as `distribute` was given it, trained on and
    with all its state.

    Call it on every rank, behind `step()`: gradients that no step has applied are dropped. What
    PowerSGD has not sent yet is dropped with the plan. A plan that lags gives every rank the sum of
    all updates and the mean of the optimizers' states.

    model: what `distribute` was given, or what it returned.

    Raises:
        InvalidInput: nobody has distributed the model.
        NotSupported: torch's `fully_shard` holds it, or one of several optimizers has yet to step.
        SynchronizationFailed: a peer died: the plan is off, but weights may be of two iterations.
    """
    if (plan := ATTACHED.plan_of(model)) is not None:
        plan.detach()
        if plan.failure is not None:
            raise plan.failure
        return model, plan.given
    if (ddp := ATTACHED.ddp_around(compiled_from(model))) is not None:
        return ddp.module, _unwrap(ddp)
    if compiled_from(model) in ATTACHED.sharded:
        raise NotSupported(
            "torch's fully_shard cannot be taken off a model: no rank holds its whole parameters.",
            thing="model",
            value=type(model).__name__,
            remedy="Make the model anew, and load what torch.distributed.checkpoint.state_dict."
            "get_model_state_dict(..., options=StateDictOptions(full_state_dict=True)) gives.",
        )
    raise InvalidInput(
        f"the model ({type(model).__name__}) is not distributed.",
        thing="model",
        value=type(model).__name__,
        remedy="Give autosync.detach the model that autosync.distribute was given or returned.",
    )


def _unwrap(ddp: DistributedDataParallel) -> Given:
    made = ATTACHED.wrapped.pop(ddp)
    _remove(made.handles)
    with torch.no_grad():
        for parameter in ddp.module.parameters():
            parameter.grad = None
    ddp._remove_autograd_hooks()
    ddp.register_forward_pre_hook(_refuse_forward)
    ATTACHED.detached.add(ddp)
    return made.optimizers


def _refuse_forward(module: nn.Module, args: Any) -> None:
    raise InvalidInput(
        "a DistributedDataParallel was used after autosync.detach had taken it off its model.",
        thing="model",
        remedy="Use the model that autosync.detach returned.",
    )
