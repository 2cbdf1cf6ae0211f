"""Gradients whose reader must wait, or must not read them at all.

Where a plan lets a sum run into the next forward pass, `parameter.grad` is not complete when
backward() returns; where an update is owned or sharded, or a module lives on some of the ranks, it
never is on every rank. So from the end of backward to `step()` such a `parameter.grad` is a
PendingGradient. Reading one that will be complete waits for it, and then it is the global average
like any other: a script may clip it, log it or change it. Reading one of which some rank does not
hold all is refused by name.

A GradScaler works on both: the operation that it checks and unscales gradients with is recognised
as such, whoever calls it, and gets the sums that this rank will apply.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from autosync.errors import NotSupported
from autosync.runtime.compression.rows import sparse_tensor
from autosync.runtime.execution.nested_tensors import tensors_in
from autosync.runtime.layout.records import VariableRecord

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


class GradientHolder(Protocol):
    """The engine, as far as pending gradients need it."""

    def complete(self, variable: VariableRecord) -> None:
        """Wait until `parameter.grad` is the global average, a plain tensor.

        Raises:
            NotSupported: no rank holds all of it.
        """
        ...

    def show_gradients(self) -> None:
        """Put the sums that this rank applies into `parameter.grad`, as plain tensors."""
        ...

    def make_gradients_pending(self) -> None:
        """Make what is not complete pending again."""
        ...


class PendingGradient(Tensor):
    """Shares its storage with `plain`, the gradient itself. of_values: of that sparse gradient."""

    holder: GradientHolder
    variable: VariableRecord
    plain: Tensor
    of_values: bool

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        pending = [t for t in tensors_in((args, given)) if isinstance(t, PendingGradient)]
        holders = list(dict.fromkeys(gradient.holder for gradient in pending))
        if func in METADATA:
            return func(*_plain(args), **given)
        if func is Tensor._values:
            first = pending[0]
            return _pending(first.holder, first.variable, first.plain, values=True)
        if func is UNSCALE:
            for holder in holders:
                holder.show_gradients()
            result = func(*_plain(args), **_plain(given))
            for holder in holders:
                holder.make_gradients_pending()
            return result
        for gradient in pending:
            gradient.holder.complete(gradient.variable)
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
    """`parameter.grad` as a plain tensor."""
    gradient = variable.parameter.grad
    return gradient.plain if isinstance(gradient, PendingGradient) else gradient


def make_pending(holder: GradientHolder, variables: Iterable[VariableRecord]) -> None:
    """A variable without a gradient gets zeros, so that every rank shows the same variables."""
    for variable in variables:
        parameter = variable.parameter
        if parameter.grad is None:
            parameter.grad = _nothing(variable)
        parameter.grad = _pending(holder, variable, parameter.grad)


def make_plain(variables: Iterable[VariableRecord]) -> None:
    for variable in variables:
        variable.parameter.grad = plain_gradient(variable)


def any_left(variables: Iterable[VariableRecord]) -> bool:
    """Whether a gradient of the backward pass before is still there, read or not."""
    pairs = [(variable.parameter.grad, variable) for variable in variables]
    return any(
        isinstance(gradient, PendingGradient) or gradient is variable.target
        for gradient, variable in pairs
        if gradient is not None
    )


def take_for_step(variables: Iterable[VariableRecord]) -> list[VariableRecord]:
    """At `step()`: gradients are plain tensors again. Returns the variables whose gradient the
    script replaced unread: what it put there counts, on every rank alike.

    Raises:
        NotSupported: it replaced one that no rank holds.
    """
    replaced = []
    for variable in variables:
        if isinstance(variable.parameter.grad, PendingGradient):
            variable.parameter.grad = plain_gradient(variable)
        elif not variable.whole:
            raise incomplete_gradient(variable, "was replaced before step()")
        elif variable.parameter.grad is not variable.target:
            if variable.apart:
                raise incomplete_gradient(variable, "was replaced before step()")
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


def incomplete_gradient(variable: VariableRecord, what: str) -> NotSupported:
    if variable.apart:
        return NotSupported(
            f"the gradient of {variable.name!r} {what}, but only the ranks that its module is "
            "placed on have it: a norm or a scale over all gradients would differ from rank "
            "to rank.",
            thing=f"variable {variable.name}.grad",
            remedy="Clip by max_grad_norm= of autosync.distribute or by autosync.clip_grad_norm_; "
            "train without a GradScaler (bfloat16 needs none); or use a strategy without a "
            "placement.",
        )
    return NotSupported(
        f"the gradient of {variable.name!r} {what}, but no rank holds all of it: the strategy "
        "updates parts of variables on the ranks that own them.",
        thing=f"variable {variable.name}.grad",
        remedy="Clip by max_grad_norm= of autosync.distribute or by autosync.clip_grad_norm_, or "
        "use a strategy without owned or sharded updates.",
    )


def _pending(
    holder: GradientHolder, variable: VariableRecord, plain: Tensor, values: bool = False
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
    """The same structure with plain gradients in place of pending ones."""
    if isinstance(value, PendingGradient):
        return value.current()
    if type(value) in (tuple, list):
        return type(value)([_plain(item) for item in value])
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    return value
