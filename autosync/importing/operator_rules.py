"""Operators of which torch does not know the shapes, or does not count the FLOPs rightly."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autosync.importing.attention import attention_backward_flops, attention_flops
from autosync.importing.selective_scan import (
    selective_scan_backward_flops,
    selective_scan_flops,
)

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
