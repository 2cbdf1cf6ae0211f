"""Updates of touched rows by their owner, with torch's own sparse optimizers."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from autosync.errors import NotSupported
from autosync.runtime.layout.records import Bucket, RowRange, VariableRecord
from autosync.runtime.payloads.sparse_rows import TouchedRows, sparse_tensor
from autosync.runtime.updates.flat_update import Group, grouped, plain_step, twin

SPARSE_OPTIMIZERS: tuple[type[Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.Adagrad,
    torch.optim.SparseAdam,
)
"""torch's optimizers that take sparse gradients. Exact classes: a subclass may do anything."""

RunState = dict[str, Any]


def check_sparse(optimizer: Optimizer, variable: VariableRecord) -> None:
    """Raises NotSupported where the optimizer cannot apply sparse gradients to the variable."""
    if variable.group < 0:
        return
    kind = type(optimizer)
    group = optimizer.param_groups[variable.group]
    if kind not in SPARSE_OPTIMIZERS:
        known = ", ".join(known.__name__ for known in SPARSE_OPTIMIZERS)
        raise NotSupported(
            f"variable {variable.name!r} has a sparse gradient, which optimizer {kind.__name__} "
            "does not take.",
            thing="optimizer",
            value=kind.__name__,
            remedy=f"Use one of {known}, or sparse=False on its embedding and tune again.",
        )
    for option in ("weight_decay", "fused"):
        if group.get(option):
            raise NotSupported(
                f"variable {variable.name!r} has a sparse gradient, which {kind.__name__} does "
                f"not take with {option}.",
                thing=f"optimizer.{option}",
                value=group[option],
                remedy=f"Give it a parameter group of its own without {option}.",
            )


class RowUpdate:
    """Updates the tables' rows of a bucket that this rank owns, where they lie.

    The state lives here, by range: `parts` are views of the tables.
    """

    def __init__(self, kind: type[Optimizer], bucket: Bucket):
        self.kind = kind
        self.bucket = bucket
        self.parts = [part.variable.alias[part.start : part.stop] for part in bucket.ranges]
        self.state: defaultdict[Tensor, Any] = defaultdict(dict)

    def run(self, optimizer: Optimizer, hyper: list[Group], unused: Callable[[int], bool]) -> None:
        """From summed rows to new values, and which rows these are."""
        pairs = list(zip(self.bucket.ranges, self.parts, strict=True))
        for part, rows in pairs:
            rows.grad = None if unused(part.variable.index) else part.sums
        groups = grouped(((part.variable.group, rows) for part, rows in pairs), hyper)
        if groups:
            plain_step(self.kind)(twin(self.kind, optimizer, groups, self.state))
        for part, rows in pairs:
            rows.grad = None
            part.changed = part.start + self._changed(part, rows)

    def _changed(self, part: RowRange, rows: Tensor) -> Tensor:
        """Momentum moves every row that was ever touched."""
        assert part.sums is not None  # reduced before it is updated
        buffer = self.state[rows].get("momentum_buffer") if rows in self.state else None
        if buffer is not None and buffer.is_sparse:
            moving: Tensor = torch.unique(buffer._indices()[0])
            return moving
        return part.sums._indices()[0]

    def gradients(self) -> list[Tensor]:
        return [part.sums._values() for part in self.bucket.ranges if part.sums is not None]

    def held(self) -> list[tuple[int, int, RunState]]:
        """(first row, end, state) of each range, on the host."""
        return [
            (part.start, part.stop, {key: _on_host(value) for key, value in self._of(rows).items()})
            for part, rows in zip(self.bucket.ranges, self.parts, strict=True)
        ]

    def _of(self, rows: Tensor) -> RunState:
        state: RunState = self.state.get(rows, {})
        return state

    def take_state(self, optimizer: Optimizer) -> None:
        """The rows' part of what the script's optimizer holds."""
        for part, rows in zip(self.bucket.ranges, self.parts, strict=True):
            whole = optimizer.state.get(part.variable.parameter, {})
            self.state[rows] = {
                key: _narrowed(value, part) if _per_row(value, part.variable) else _copied(value)
                for key, value in whole.items()
            }


def _per_row(value: Any, variable: VariableRecord) -> bool:
    return isinstance(value, Tensor) and value.shape == variable.alias.shape


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _on_host(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, Tensor) else value


def _narrowed(value: Tensor, part: RowRange) -> Tensor:
    if not value.is_sparse:
        return value[part.start : part.stop].clone()
    value = value.coalesce()
    indices = value._indices()[0]
    inside = (indices >= part.start) & (indices < part.stop)
    shape = (part.stop - part.start, *value.shape[1:])
    rows = (indices[inside] - part.start, value._values()[inside])
    return sparse_tensor(rows, shape, coalesced=True)


def fill_rows(optimizer: Optimizer, bucket: Bucket, runs: list[tuple[int, int, RunState]]) -> None:
    """Put an owner's state of a bucket into the script's optimizer."""
    for part, (start, stop, held) in zip(bucket.ranges, runs, strict=True):
        table = part.variable.alias
        state = optimizer.state[part.variable.parameter]
        for key, value in held.items():
            if not isinstance(value, Tensor) or not value.dim():
                state[key] = _copied(value)
            elif value.is_sparse:
                rows = value.coalesce()
                moved = (rows._indices()[0] + start, rows._values())
                here = sparse_tensor(moved, tuple(table.shape)).to(table.device)
                state[key] = (state[key] + here if key in state else here).coalesce()
            else:
                if key not in state:
                    state[key] = torch.zeros_like(table, dtype=value.dtype)
                state[key][start:stop] = value.to(table.device)


def show_rows(bucket: Bucket) -> None:
    """Make `parameter.grad` hold the summed rows that this rank updates, and one row of zeros
    where it updates none: what a GradScaler inspects and unscales."""
    for variable in bucket.variables:
        _show_rows(variable)


def _show_rows(variable: VariableRecord) -> None:
    carrier, table = variable.carrier, variable.alias
    assert isinstance(carrier, TouchedRows)
    owned = [(part.start, part.sums) for part in carrier.ranges if part.sums is not None]
    indices = [start + sums._indices()[0] for start, sums in owned]
    values = [sums._values() for _, sums in owned]
    if not any(len(rows) for rows in indices):
        indices = [torch.zeros(1, dtype=torch.int64, device=table.device)]
        values = [table.new_zeros(1, *table.shape[1:])]
    rows = (torch.cat(indices), torch.cat(values))
    variable.parameter.grad = sparse_tensor(rows, tuple(table.shape)).coalesce()


def take_rows_back(bucket: Bucket) -> None:
    """What was done to shown rows is done to the sums."""
    for part in bucket.ranges:
        gradient = part.variable.parameter.grad
        if part.sums is None or gradient is None or not part.sums._nnz():
            continue
        indices = gradient._indices()[0]
        inside = (indices >= part.start) & (indices < part.stop)
        part.sums._values().copy_(gradient._values()[inside])
