"""Operators of which torch does not know the shapes, or does not count the FLOPs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

grouped_mm = torch.ops.aten._grouped_mm
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


SHAPES: dict[Any, Callable[..., Any]] = {grouped_mm: _grouped_mm_shapes}
FLOPS: dict[Any, Callable[..., int]] = {grouped_mm: _grouped_mm_flops}
