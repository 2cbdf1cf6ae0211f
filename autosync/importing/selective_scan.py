"""Mamba's selective scan as one operation.

Where its kernels (the package mamba_ssm, a GPU) are missing, transformers runs the recurrence token
by token: thousands of operations a layer, whose states all stay in memory. Training runs the
kernel, which keeps its inputs and makes the states again in backward (Gu and Dao 2023, arXiv
2312.00752, section 3.3.2). FLOPs are those of the products of states and outputs alone, as torch
counts them in the recurrence.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

NAME = "mamba_selective_scan"
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
        if name.startswith("transformers.models.") and NAME in vars(module)
    ]
    before = [getattr(module, NAME) for module in found]
    for module in found:
        setattr(module, NAME, _fused)
    try:
        yield
    finally:
        for module, function in zip(found, before, strict=True):
            setattr(module, NAME, function)


ARGUMENTS = ("hidden_states", "dt", "A", "B", "C", "D", "z", "delta_bias")
"""In the order of `INPUTS`."""


def _fused(*positional: Any, **keywords: Any) -> Tensor | tuple[Tensor, Tensor]:
    given = dict(zip(ARGUMENTS, positional, strict=False)) | keywords
    inputs = (given.get(name) for name in ARGUMENTS)
    out, state = torch.ops.autosync.selective_scan(*inputs)
    return (out, state) if given.get("return_last_state") else out
