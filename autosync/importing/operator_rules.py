"""Operators of which torch does not know the shapes, or does not count the FLOPs rightly.

Mamba's selective scan is one operation here. Where its kernels (the package mamba_ssm, a GPU) are
missing, transformers runs the recurrence token by token: thousands of operations a layer, whose
states all stay in memory. Training runs the kernel, which keeps its inputs and computes the states
again in backward (Gu and Dao 2023, arXiv 2312.00752, section 3.3.2). Its FLOPs are those of the
products of states and outputs alone, as torch counts them in the recurrence.
"""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from autosync.importing.attention import attention_backward_flops, attention_flops

SCAN = "mamba_selective_scan"
"""Of the function in transformers' models with such layers."""

INPUTS = "Tensor values, Tensor steps, Tensor decay, Tensor into, Tensor out_of, " + ", ".join(
    f"Tensor? {name}" for name in ("skip", "gate", "bias")
)
torch.library.define("autosync::selective_scan", f"({INPUTS}) -> (Tensor, Tensor)")
torch.library.define(
    "autosync::selective_scan_backward", f"(Tensor gradient, {INPUTS}) -> Tensor[]"
)


@torch.library.register_fake("autosync::selective_scan")
def _(values: Tensor, steps: Tensor, decay: Tensor, *rest: Tensor | None) -> tuple[Tensor, Tensor]:
    """The output `(batch, channels, tokens)` as `values`, and the last state `(batch, channels,
    width of a state)`."""
    return torch.empty_like(values), values.new_empty(*values.shape[:2], decay.shape[-1])


@torch.library.register_fake("autosync::selective_scan_backward")
def _(gradient: Tensor, *inputs: Tensor | None) -> list[Tensor]:
    return [torch.empty_like(each) for each in inputs if each is not None]


def _setup_context(ctx: Any, inputs: tuple[Tensor | None, ...], output: object) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    inputs = ctx.saved_tensors
    made = iter(torch.ops.autosync.selective_scan_backward(gradient, *inputs))
    return tuple(None if each is None else next(made) for each in inputs)


torch.library.register_autograd("autosync::selective_scan", _backward, setup_context=_setup_context)


def selective_scan_flops(values: Tensor, steps: Tensor, decay: Tensor, *_: Any, **__: Any) -> int:
    return 2 * values.numel() * int(decay.shape[-1])


def selective_scan_backward_flops(gradient: Tensor, *inputs: Tensor, **__: Any) -> int:
    return 2 * selective_scan_flops(*inputs)


@contextmanager
def fused_scans() -> Iterator[None]:
    """Inside, transformers' models take the operation above."""
    found = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("transformers.models.") and SCAN in vars(module)
    ]
    before = [getattr(module, SCAN) for module in found]
    for module in found:
        setattr(module, SCAN, _fused_scan)
    try:
        yield
    finally:
        for module, function in zip(found, before, strict=True):
            setattr(module, SCAN, function)


ARGUMENTS = ("hidden_states", "dt", "A", "B", "C", "D", "z", "delta_bias")
"""In the order of `INPUTS`."""


def _fused_scan(*positional: Any, **keywords: Any) -> Tensor | tuple[Tensor, Tensor]:
    given = dict(zip(ARGUMENTS, positional, strict=False)) | keywords
    inputs = (given.get(name) for name in ARGUMENTS)
    out, state = torch.ops.autosync.selective_scan(*inputs)
    return (out, state) if given.get("return_last_state") else out


aten = torch.ops.aten
grouped_mm = aten._grouped_mm
"""A matrix product for every group of rows: the experts of a mixture."""


def _grouped_mm_shapes(left: Tensor, right: Tensor, *args: Any, **keywords: Any) -> Tensor:
    """torch 2.13 knows the shapes for bfloat16 only, though other types run."""
    short = torch.bfloat16
    out: Tensor = grouped_mm.default(left.to(short), right.to(short), *args, **keywords)
    return out.to(left.dtype)


def _grouped_mm_flops(left: Tensor, right: Tensor, *args: Any, **keywords: Any) -> int:
    """Every row meets one group, whichever."""
    groups = left.shape[0] if left.dim() == right.dim() == 3 else 1
    return int(2 * groups * left.shape[-2] * left.shape[-1] * right.shape[-1])


def _convolution_backward_flops(
    gradient: Tensor,
    images: Tensor,
    weight: Tensor,
    bias_sizes: object,
    stride: object,
    padding: object,
    dilation: object,
    transposed: bool,
    output_padding: object,
    groups: int,
    output_mask: tuple[bool, bool, bool],
    **_: Any,
) -> int:
    """The gradients of images and weight take the products of the forward pass each. (torch 2.13
    counts the weight's as if there were no groups.)"""
    places = images if transposed else gradient
    products = places.shape[0] * math.prod(places.shape[2:]) * weight.numel()
    return 2 * products * sum(output_mask[:2])


SHAPES: dict[Any, Callable[..., Any]] = {grouped_mm: _grouped_mm_shapes}
FLOPS: dict[Any, Callable[..., int]] = {
    grouped_mm: _grouped_mm_flops,
    aten.convolution_backward: _convolution_backward_flops,
    torch.ops.autosync.scaled_dot_product_attention: attention_flops,
    torch.ops.autosync.scaled_dot_product_attention_backward: attention_backward_flops,
    torch.ops.autosync.selective_scan: selective_scan_flops,
    torch.ops.autosync.selective_scan_backward: selective_scan_backward_flops,
    aten._scaled_dot_product_flash_attention_for_cpu: attention_flops,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward_flops,
}
"""These come before torch's own."""
