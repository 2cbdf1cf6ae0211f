"""Clips by the global norm of exactly the gradients that are applied, each counted once, and shows
these to a GradScaler. Norms stay on the device: on a GPU the script's thread does not wait."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from autosync.errors import InvalidInput, NotSupported
from autosync.runtime.compression.rows import TouchedRows, sparse_tensor
from autosync.runtime.device.streams import Streams
from autosync.runtime.layout.packing import whole_gradients
from autosync.runtime.layout.records import Bucket, VariableRecord
from autosync.runtime.transport.base import Wait
from autosync.runtime.updates.part_updates import FlatUpdate

EPSILON = 1e-6
"""As in torch.nn.utils.clip_grad_norm_."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Of a `step()`: its positional arguments, the optimizer first, and its keywords."""


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
    sum_over_ranks: Callable[[Tensor], None],
    max_norm: float | Tensor,
    model_is_divided: bool = False,
) -> Tensor:
    """Scale every reduced gradient; returns the norm before, f64[]. A collective where updates are
    owned or sharded, or ranks divide the model, since no rank holds all the sums then.

    sum_over_ranks: adds up a small tensor of the gradients' device over all ranks, in place.
    """
    everywhere = whole_gradients([v for v in variables if not v.held_by_some])
    here = whole_gradients([v for v in variables if v.held_by_some and v.counts_in_norm])
    others = whole_gradients([v for v in variables if v.held_by_some and not v.counts_in_norm])
    for bucket in buckets:
        if bucket.update:
            (here if bucket.values_travel else everywhere).extend(bucket.update.gradients())
    device = variables[0].parameter.device
    squares = _sum_of_squares(here, device)
    if model_is_divided or any(bucket.values_travel for bucket in buckets):
        sum_over_ranks(squares)
    norm = (squares + _sum_of_squares(everywhere, device)).sqrt()
    gradients = [*everywhere, *here, *others]  # none on a rank that owns nothing
    scale_gradients(gradients, max_norm / (norm + EPSILON))
    return norm


def scale_gradients(gradients: list[Tensor], scale: Tensor) -> None:
    """By `scale`, f64[], where it is less than 1, or no number, as torch does. A GPU decides by
    itself: nothing waits for it."""
    if not gradients:
        return
    if scale.device.type != "cpu":
        _scale_by(gradients, scale.clamp(max=1.0))
    elif not scale >= 1.0:
        torch._foreach_mul_(gradients, float(scale))


def _scale_by(gradients: list[Tensor], scale: Tensor) -> None:
    for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
        alike = [gradient for gradient in gradients if gradient.dtype == dtype]
        accurate = torch.promote_types(dtype, torch.float32)
        torch._foreach_mul_(alike, scale.to(torch.float64 if accurate.is_complex else accurate))


def clip_before_step(model: nn.Module, optimizer: Optimizer, max_norm: float) -> RemovableHandle:
    """Clip where torch's DDP synchronizes: every rank holds whole gradients then."""
    parameters = list(model.parameters())

    def clip(stepping: Optimizer, args: Any, kwargs: Any) -> Arguments | None:
        return clipping_first(
            lambda: nn.utils.clip_grad_norm_(parameters, max_norm * float(loss_scale(stepping))),
            args,
            kwargs,
        )

    return optimizer.register_step_pre_hook(clip)


def clipping_first(clip: Callable[[], object], args: Any, kwargs: Any) -> Arguments | None:
    """Clip before the update of a `step()`, in a hook that runs before it: at once, or, where the
    step was given a closure, behind that, since its backward pass makes the gradients.

    args, kwargs: of the step, its optimizer included. Returns what the hook returns.
    """
    if not any(callable(given) for given in (*args[1:], *kwargs.values())):
        clip()
        return None

    def with_clipping(given: Any) -> Any:
        if not callable(given):
            return given

        def closure() -> Any:
            loss = given()
            clip()
            return loss

        return closure

    named = {name: with_clipping(given) for name, given in kwargs.items()}
    return (args[0], *map(with_clipping, args[1:])), named


def clipping_of_several() -> NotSupported:
    """At the first `step()` a GradScaler may have unscaled one optimizer's gradients only."""
    return NotSupported(
        "max_grad_norm was given with several optimizers, where each steps by itself: the norm "
        "over all gradients belongs in front of the first step().",
        thing="max_grad_norm",
        remedy="Leave it out and call torch.nn.utils.clip_grad_norm_(model.parameters(), ...) "
        "before the first step(): every rank holds whole gradients under this plan.",
    )


def loss_scale(optimizer: Optimizer) -> float | Tensor:
    """What gradients are still multiplied by at `step()`: a GradScaler leaves it to a fused
    optimizer to divide them. On the device, where it is one."""
    scale: float | Tensor | None = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else scale


def keep_scaler_tensors(optimizer: Optimizer, streams: Streams) -> None:
    """What a GradScaler leaves on a fused optimizer while it steps, and frees behind it."""
    for name in ("grad_scale", "found_inf"):
        if isinstance(tensor := getattr(optimizer, name, None), Tensor):
            streams.keep_for_completion(tensor)


def show_gradients(bucket: Bucket) -> None:
    """For a GradScaler, where updates are owned or sharded: make `parameter.grad` hold the sums
    that this rank updates, and zero where other ranks do."""
    if bucket.ranges:
        for variable in bucket.variables:
            _show_rows(variable)
        return
    owned = bucket.update.span if isinstance(bucket.update, FlatUpdate) else slice(0, 0)
    bucket.buffer[: owned.start].zero_()
    bucket.buffer[owned.stop :].zero_()
    for variable, segment, view in bucket.pieces:
        if variable.view is None:
            if variable.parameter.grad is None:
                variable.parameter.grad = torch.zeros_like(variable.alias)
            variable.parameter.grad[segment.region].copy_(view)


def take_back(bucket: Bucket) -> None:
    """What a GradScaler did to shown gradients is done to the sums."""
    if bucket.ranges:
        _take_rows_back(bucket)
        return
    for variable, segment, view in bucket.pieces:
        if variable.view is None and variable.parameter.grad is not None:
            view.copy_(variable.parameter.grad[segment.region])


def _show_rows(variable: VariableRecord) -> None:
    """The summed rows that this rank updates, or one row of zeros where it updates none."""
    packer, table = variable.packer, variable.alias
    assert isinstance(packer, TouchedRows)
    owned = [(rows.start, rows.sums) for rows in packer.ranges if rows.sums is not None]
    indices = [start + sums._indices()[0] for start, sums in owned]
    values = [sums._values() for _, sums in owned]
    if not any(len(found) for found in indices):
        indices = [torch.zeros(1, dtype=torch.int64, device=table.device)]
        values = [table.new_zeros(1, *table.shape[1:])]
    shown = (torch.cat(indices), torch.cat(values))
    variable.parameter.grad = sparse_tensor(shown, tuple(table.shape)).coalesce()


def _take_rows_back(bucket: Bucket) -> None:
    for rows in bucket.ranges:
        gradient = rows.variable.parameter.grad
        if rows.sums is None or gradient is None or not rows.sums._nnz():
            continue
        indices = gradient._indices()[0]
        inside = (indices >= rows.start) & (indices < rows.stop)
        rows.sums._values().copy_(gradient._values()[inside])


def agree_on_infinity(
    variables: list[VariableRecord], buckets: list[Bucket], control: Any, wait: Wait
) -> None:
    """Where one rank's sums are not finite, make some gradient of every rank so."""
    mine = [g for b in buckets if b.update and b.values_travel for g in b.update.gradients()]
    finite = bool(torch.stack([g.isfinite().all() for g in mine]).all()) if mine else True
    found = torch.tensor([not finite], dtype=torch.int32, device="cpu")
    wait(control.allreduce([found], dist.AllreduceOptions()))
    if int(found):
        victim = next(v for v in variables if not v.whole and v.parameter.grad is not None)
        assert victim.parameter.grad is not None
        gradient = victim.parameter.grad
        values = gradient._values() if gradient.is_sparse else gradient
        values[(0,) * values.dim()] = torch.inf  # whatever its strides


def _sum_of_squares(tensors: list[Tensor], device: torch.device) -> Tensor:
    """f64[], on the device."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    norms: list[Tensor] = list(torch._foreach_norm(tensors)) if tensors else []
    for dtype in dict.fromkeys(norm.dtype for norm in norms):
        alike = [norm for norm in norms if norm.dtype == dtype]
        total += torch.stack(alike).double().square().sum()
    return total
