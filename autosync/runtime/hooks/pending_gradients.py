"""Gradients that are not what their reader expects, marked.

Where a plan lets a sum run into the next forward pass, `parameter.grad` is not complete when
backward() returns; where an update is owned or sharded, it never is on every rank. So from the end
of backward to `step()` such a `parameter.grad` is a PendingGradient. Reading one that will be
complete waits for it, and then it is the global average like any other: a script may clip it, log
it or change it. Reading one that lives elsewhere is refused by name.

A GradScaler works on both: the operation that it checks and unscales gradients with is recognised
as such, whoever calls it, and gets the sums that this rank will apply.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from autosync.errors import NotSupported
from autosync.runtime.hooks.forward_gates import tensors_in
from autosync.runtime.layout.records import VariableRecord
from autosync.runtime.payloads.sparse_rows import sparse_tensor

UNSCALE = torch._amp_foreach_non_finite_check_and_unscale_
"""What a GradScaler does to gradients: multiplies them and reports infinities."""

METADATA = frozenset(
    [
        *(
            getattr(Tensor, name).__get__
            for name in ("dtype", "device", "layout", "shape", "ndim", "is_sparse", "is_cuda")
        ),
        *(getattr(Tensor, name).__get__ for name in ("requires_grad", "grad_fn", "is_leaf")),
        *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.element_size, Tensor.is_floating_point),
    ]
)
"""What reads no value."""


class Holder(Protocol):
    """The engine, as far as marked gradients need it."""

    def complete(self, variable: VariableRecord) -> None:
        """Wait until `parameter.grad` is the global average; no mark afterwards.

        Raises:
            NotSupported: no rank holds all of it.
        """
        ...

    def show_gradients(self) -> None:
        """Put the sums that this rank applies into `parameter.grad`; no mark afterwards."""
        ...

    def mark_gradients(self) -> None:
        """Mark again what is not complete."""
        ...


class PendingGradient(Tensor):
    """Shares its storage with `plain`, the gradient itself. of_values: of that sparse gradient."""

    holder: Holder
    variable: VariableRecord
    plain: Tensor
    of_values: bool

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        marks = [t for t in tensors_in((args, given)) if isinstance(t, PendingGradient)]
        holders = list(dict.fromkeys(mark.holder for mark in marks))
        if func in METADATA:
            return func(*_plain(args), **given)
        if func is Tensor._values:
            return _marked(marks[0].holder, marks[0].variable, marks[0].plain, values=True)
        if func is UNSCALE:
            for holder in holders:
                holder.show_gradients()
            result = func(*_plain(args), **_plain(given))
            for holder in holders:
                holder.mark_gradients()
            return result
        for mark in marks:
            mark.holder.complete(mark.variable)
        return func(*_plain(args), **_plain(given))

    def current(self) -> Tensor:
        """The gradient: a sparse one is another tensor once its rows have been added up."""
        with torch._C.DisableTorchFunctionSubclass():
            found = self.plain
            if found.is_sparse:
                now = plain_gradient(self.variable)
                found = found if now is None else now
            return found._values() if self.of_values else found


def plain_gradient(variable: VariableRecord) -> Tensor | None:
    """`parameter.grad` without its mark."""
    gradient = variable.parameter.grad
    return gradient.plain if isinstance(gradient, PendingGradient) else gradient


def mark(holder: Holder, variables: Iterable[VariableRecord]) -> None:
    """A variable without a gradient gets zeros, so that every rank shows the same variables."""
    for variable in variables:
        parameter = variable.parameter
        if parameter.grad is None:
            parameter.grad = _nothing(variable)
        parameter.grad = _marked(holder, variable, parameter.grad)


def unmark(variables: Iterable[VariableRecord]) -> None:
    for variable in variables:
        variable.parameter.grad = plain_gradient(variable)


def left_over(variables: Iterable[VariableRecord]) -> bool:
    """Whether a gradient of the backward pass before is still there, read or not."""
    pairs = [(variable.parameter.grad, variable) for variable in variables]
    return any(
        isinstance(gradient, PendingGradient) or gradient is variable.target
        for gradient, variable in pairs
        if gradient is not None
    )


def settle(variables: Iterable[VariableRecord]) -> list[VariableRecord]:
    """At `step()`: no mark afterwards. Returns the variables whose gradient the script replaced
    unread: what it put there counts, on every rank alike.

    Raises:
        NotSupported: it replaced one that no rank holds.
    """
    replaced = []
    for variable in variables:
        if isinstance(variable.parameter.grad, PendingGradient):
            variable.parameter.grad = plain_gradient(variable)
        elif not variable.whole:
            raise incomplete(variable, "was replaced before step()")
        elif variable.parameter.grad is not variable.target:
            replaced.append(variable)
    return replaced


def check_synchronized(variables: Iterable[VariableRecord]) -> None:
    """At a `step()` that no synchronized backward pass came before.

    Raises:
        NotSupported: there is a gradient all the same.
    """
    for variable in variables:
        if variable.parameter.grad is not None:
            raise NotSupported(
                f"optimizer.step() found a gradient of {variable.name!r} that no backward "
                "pass has synchronized.",
                thing=f"variable {variable.name}",
                remedy="Run the last backward pass before step() outside of no_sync().",
            )


def incomplete(variable: VariableRecord, what: str) -> NotSupported:
    return NotSupported(
        f"the gradient of {variable.name!r} {what}, but no rank holds all of it: the strategy "
        "updates parts of variables on the ranks that own them.",
        thing=f"variable {variable.name}.grad",
        remedy="Clip by max_grad_norm= of autosync.distribute, or use a strategy without owned or "
        "sharded updates.",
    )


def _marked(
    holder: Holder, variable: VariableRecord, plain: Tensor, values: bool = False
) -> PendingGradient:
    shown = plain._values() if values else plain
    made: PendingGradient = Tensor._make_subclass(PendingGradient, shown)
    made.holder, made.variable, made.plain, made.of_values = holder, variable, plain, values
    return made


def _nothing(variable: VariableRecord) -> Tensor:
    table = variable.alias
    if not any(bucket.ranges for bucket in variable.buckets):
        return torch.zeros_like(table)
    rows = torch.empty(0, dtype=torch.int64, device=table.device)
    empty = table.new_empty(0, *table.shape[1:])
    return sparse_tensor((rows, empty), tuple(table.shape), coalesced=True)


def _plain(value: Any) -> Any:
    """The same structure with gradients in their marks' place."""
    if isinstance(value, PendingGradient):
        return value.current()
    if type(value) in (tuple, list):
        return type(value)([_plain(item) for item in value])
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    return value
