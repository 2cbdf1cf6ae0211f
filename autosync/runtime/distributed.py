"""`autosync.distribute`: the two lines in the training script."""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from autosync.bundle import Bundle, load_bundle
from autosync.environment import host_name
from autosync.runtime.attached_models import ATTACHED, WrappedByDdp, check_plain, check_unwrapped
from autosync.runtime.attachment import attach
from autosync.runtime.device.streams import on_device
from autosync.runtime.hooks.gradient_hooks import Removable
from autosync.runtime.hooks.optimizer_coverage import check_held, warn_unheld
from autosync.runtime.hooks.torch_compile import compiled_from, warn_if_compiled
from autosync.runtime.payloads.encodings import check_lossless
from autosync.runtime.torch_ddp import wrap_in_ddp
from autosync.runtime.transport.process_groups import working_group
from autosync.runtime.transport.rank_agreement import refuse_together
from autosync.runtime.updates.clipping import clip_before_step, clipping_of_several
from autosync.torch_dtypes import TORCH_DTYPES

log = logging.getLogger("autosync")

Optimizers = TypeVar("Optimizers", bound=Optimizer | Sequence[Optimizer])


def distribute(
    model: nn.Module,
    optimizer: Optimizers,
    bundle: Bundle | str | Path,
    process_group: dist.ProcessGroup | None = None,
    max_grad_norm: float | None = None,
    allow_lossy: bool = False,
) -> tuple[nn.Module, Optimizers]:
    """Train as the bundle says: returns the model and the optimizer to go on with.

    The model comes back as the same object (with hooks), unless the bundle says torch's DDP or
    no longer fits: then it is wrapped in DistributedDataParallel, with a warning in the latter
    case. optimizer: of the model, or a list of several that hold different parameters of it; the
    same comes back. max_grad_norm: clip by the true global norm before every update. allow_lossy:
    start a plan whose messages are packed with loss (fp16, bf16, PowerSGD).

    Raises:
        InvalidInput: there is no such bundle, or torch.distributed is not initialized; the model
            or an optimizer is distributed already; an optimizer trains what is not the model's.
            On every rank, whichever finds it.
        NotSupported: the optimizer cannot be applied to parts of variables, as the plan needs, or
            the plan is lossy and that is not allowed.
    """
    group = working_group(process_group)
    shipped = bundle if isinstance(bundle, Bundle) else load_bundle(bundle)
    network = compiled_from(model)
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    refuse_together(lambda: _check(network, optimizers), group, _place_of(network))
    warn_unheld(network, optimizers)
    if changed := _changes_anywhere(shipped, network, group):
        message = f"the bundle does not fit this job, so torch's DDP is used: {changed}."
        warnings.warn(message, stacklevel=2)
        log.warning(message)
        return _wrapped(model, optimizer, max_grad_norm, 0, group), optimizer
    if shipped.plan.engine == "ddp":
        bucket_bytes = shipped.plan.bucket_bytes
        return _wrapped(model, optimizer, max_grad_norm, bucket_bytes, group), optimizer
    if not allow_lossy:
        check_lossless(shipped.plan)
    names = tuple(variable.name for variable in shipped.variables)
    warn_if_compiled(model)
    attach(network, optimizer, shipped.plan, names, group, max_grad_norm=max_grad_norm)
    return model, optimizer


def _check(model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    check_plain(model, optimizers)
    check_unwrapped(model)
    check_held(model, optimizers)


def _place_of(model: nn.Module) -> torch.device:
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def _wrapped(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    max_grad_norm: float | None,
    bucket_bytes: int,
    group: dist.ProcessGroup,
) -> nn.Module:
    """The model in torch's DDP, as `autosync.detach` finds it."""
    if max_grad_norm and not isinstance(optimizer, Optimizer):
        raise clipping_of_several()
    made = wrap_in_ddp(model, bucket_bytes, group)
    handles: tuple[Removable, ...] = ()
    if max_grad_norm and isinstance(optimizer, Optimizer):
        handles = (clip_before_step(model, optimizer, max_grad_norm),)
    ATTACHED.wrapped[made] = WrappedByDdp(optimizer, handles)
    return made


def _changes_anywhere(shipped: Bundle, model: nn.Module, group: dist.ProcessGroup) -> str:
    """What no longer matches on any rank; the same words on every rank."""
    mine = (host_name(), variable_changes(shipped, model))
    reports: list[tuple[str, str]] = [("", "")] * group.size()
    with on_device(_place_of(model)):
        dist.all_gather_object(reports, mine, group=group)
    if len(shipped.hosts) != len(reports):
        return f"it is for {len(shipped.hosts)} ranks, this job has {len(reports)}"
    for rank, (_, change) in enumerate(reports):
        if change:
            return f"on rank {rank}, {change}"
    return host_changes(shipped.hosts, tuple(host for host, _ in reports))


def variable_changes(shipped: Bundle, model: nn.Module) -> str:
    """The first difference between the bundle's variables and the model's, in words."""
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for spec in shipped.variables:
        if (parameter := found.pop(spec.name, None)) is None:
            return f"variable {spec.name!r} is missing or frozen"
        if tuple(parameter.shape) != spec.shape:
            return f"variable {spec.name!r} has shape {tuple(parameter.shape)}, not {spec.shape}"
        if parameter.dtype != TORCH_DTYPES[spec.dtype]:
            return f"variable {spec.name!r} is {parameter.dtype}, not {spec.dtype}"
    return f"variable {next(iter(found))!r} is not in the bundle" if found else ""


def host_changes(planned: tuple[str, ...], actual: tuple[str, ...]) -> str:
    """Whether ranks share hosts as planned. Addresses may differ: a bundle knows addresses, a
    rank its host name, so only the grouping is compared."""
    for rank in range(len(planned)):
        for other in range(rank):
            if (planned[rank] == planned[other]) != (actual[rank] == actual[other]):
                together = "share" if planned[rank] == planned[other] else "do not share"
                return f"ranks {other} and {rank} {together} a host in the bundle, but not here"
    return ""
