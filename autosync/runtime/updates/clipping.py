"""Clips by the global norm of exactly the gradients that are applied, each counted once."""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from autosync.errors import InvalidInput, NotSupported
from autosync.runtime.device.streams import Streams
from autosync.runtime.layout.packing import whole_gradients
from autosync.runtime.layout.records import Bucket, VariableRecord

EPSILON = 1e-6
"""As in torch.nn.utils.clip_grad_norm_."""


def check_max_norm(max_grad_norm: float | None) -> None:
    """None and 0 do not clip. Raises InvalidInput for what is no norm."""
    if max_grad_norm is not None and not max_grad_norm >= 0:
        raise InvalidInput(
            f"max_grad_norm is {max_grad_norm}, and a norm is 0 or more.",
            thing="max_grad_norm",
            value=max_grad_norm,
            remedy="Give a number above 0, or None to leave gradients as they are.",
        )


def clip_gradients(
    variables: list[VariableRecord],
    buckets: list[Bucket],
    control: Any,
    max_norm: float,
    placed: bool = False,
) -> float:
    """Scale every reduced gradient; returns the norm before. A collective where updates are
    owned or sharded, or modules placed, since no rank holds all the sums then."""
    everywhere = whole_gradients([v for v in variables if not v.apart])
    here = whole_gradients([v for v in variables if v.apart and v.counted])
    others = whole_gradients([v for v in variables if v.apart and not v.counted])
    for bucket in buckets:
        if bucket.update:
            (here if bucket.values_travel else everywhere).extend(bucket.update.gradients())
    squares = torch.tensor([_sum_of_squares(here)], dtype=torch.float64, device="cpu")
    if placed or any(bucket.values_travel for bucket in buckets):
        control.allreduce([squares], dist.AllreduceOptions()).wait()
    norm = math.sqrt(float(squares) + _sum_of_squares(everywhere))
    scale = max_norm / (norm + EPSILON)
    gradients = [*everywhere, *here, *others]  # none on a rank that owns nothing
    if gradients and not scale >= 1.0:  # also a norm that is no number, as torch does
        torch._foreach_mul_(gradients, scale)
    return norm


def clip_before_step(model: nn.Module, optimizer: Optimizer, max_norm: float) -> RemovableHandle:
    """Clip where torch's DDP synchronizes: every rank holds whole gradients then."""
    parameters = list(model.parameters())

    def clip(stepping: Optimizer, args: Any, kwargs: Any) -> None:
        nn.utils.clip_grad_norm_(parameters, max_norm * loss_scale(stepping))

    return optimizer.register_step_pre_hook(clip)


def clipping_of_several() -> NotSupported:
    """At the first `step()` a GradScaler may have unscaled one optimizer's gradients only."""
    return NotSupported(
        "max_grad_norm was given with several optimizers, where each steps by itself: the norm "
        "over all gradients belongs in front of the first step().",
        thing="max_grad_norm",
        remedy="Leave it out and call torch.nn.utils.clip_grad_norm_(model.parameters(), ...) "
        "before the first step(): every rank holds whole gradients under this plan.",
    )


def loss_scale(optimizer: Optimizer) -> float:
    """What gradients are still multiplied by at `step()`: a GradScaler leaves it to a fused
    optimizer to divide them."""
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else float(scale)


def keep_scaler_tensors(optimizer: Optimizer, streams: Streams) -> None:
    """What a GradScaler leaves on a fused optimizer while it steps, and frees behind it."""
    for name in ("grad_scale", "found_inf"):
        if isinstance(tensor := getattr(optimizer, name, None), Tensor):
            streams.keep_for_landing(tensor)


def agree_on_infinity(variables: list[VariableRecord], buckets: list[Bucket], control: Any) -> None:
    """Where one rank's sums are not finite, make some gradient of every rank so."""
    mine = [g for b in buckets if b.update and b.values_travel for g in b.update.gradients()]
    finite = bool(torch.stack([g.isfinite().all() for g in mine]).all()) if mine else True
    found = torch.tensor([not finite], dtype=torch.int32, device="cpu")
    control.allreduce([found], dist.AllreduceOptions()).wait()
    if int(found):
        victim = next(v for v in variables if not v.whole and v.parameter.grad is not None)
        assert victim.parameter.grad is not None
        gradient = victim.parameter.grad
        (gradient._values() if gradient.is_sparse else gradient).view(-1)[0] = torch.inf


def _sum_of_squares(tensors: list[Tensor]) -> float:
    if not tensors:
        return 0.0
    norms: list[Tensor] = list(torch._foreach_norm(tensors))
    # Brought to the host at once: a GPU is waited for once, not once a tensor.
    together: list[float] = torch.stack([norm.double() for norm in norms]).tolist()
    return sum((norm**2 for norm in together), 0.0)
