"""Gradients of matrices that wait until all frontiers have had their backward pass.

In Cavs' words they are lazy operators (thesis, definition 6.5.1): no vertex needs them. So one
product over the rows of all vertices takes the place of one in each frontier.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


class LazyGradients:
    """What the products of one evaluation have left to do, by the parameter that waits."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters = {id(parameter) for parameter in parameters}
        self._factors: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._rows: dict[int, list[Tensor]] = {}

    def takes(self, weight: Tensor, bias: Tensor | None) -> bool:
        """Whether they are whole parameters of the evaluation, not parts or products of them."""
        given = {id(tensor) for tensor in (weight, bias) if tensor is not None}
        return given <= self._parameters

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """As torch's `linear` of a matrix `(rows, in)`, for parameters that `takes` says yes to."""
        product: Tensor = _LazyLinear.apply(self, x, weight, bias)  # type: ignore[no-untyped-call]
        return product

    def keep(self, x: Tensor, weight: int, bias: int | None, given: Tensor) -> None:
        """After the backward of a product of x `(rows, in)`: given `(rows, out)` is the gradient
        of its result; weight and bias are the identities of its parameters."""
        self._factors.setdefault(weight, []).append((given, x))
        if bias is not None:
            self._rows.setdefault(bias, []).append(given)

    def of(self, parameter: Tensor) -> Tensor | None:
        """Its gradient by all the products of the evaluation; None where it has none."""
        total: Tensor | None = None
        if factors := self._factors.pop(id(parameter), None):
            given, x = (torch.cat(parts) for parts in zip(*factors, strict=True))
            total = given.t() @ x
        if rows := self._rows.pop(id(parameter), None):
            of_bias = torch.cat(rows).sum(dim=0)
            total = of_bias if total is None else total + of_bias
        return total


class _LazyLinear(torch.autograd.Function):
    """Its backward gives x its gradient, and keeps what those of weight and bias are made of."""

    @staticmethod
    def forward(
        ctx: Any, lazy: LazyGradients, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.lazy = lazy
        # Saved tensors may come back as others, of the same values.
        ctx.parameters = id(weight), None if bias is None else id(bias)
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        ctx.lazy.keep(x, *ctx.parameters, given)
        return None, given @ weight if ctx.needs_input_grad[1] else None, None, None
