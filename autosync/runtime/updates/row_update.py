"""Updates of touched rows by their owner, with torch's own sparse optimizers."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from autosync.errors import NotSupported
from autosync.runtime.compression.rows import TouchedRows, sparse_tensor
from autosync.runtime.device.strides import Shape
from autosync.runtime.layout.records import Bucket, HeldRange, RowRange, Settings, VariableRecord
from autosync.runtime.updates.joined_optimizers import optimizer_class_of
from autosync.runtime.updates.twin_optimizer import grouped, held_state, step_twin

SPARSE_OPTIMIZERS: tuple[type[Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.Adagrad,
    torch.optim.SparseAdam,
)
"""torch's optimizers that take sparse gradients. Exact classes: a subclass may do anything."""


def check_sparse(optimizer: Optimizer, variable: VariableRecord) -> None:
    """Raises NotSupported where the optimizer cannot apply sparse gradients to the variable."""
    if variable.group < 0:
        return
    kind = optimizer_class_of(optimizer, variable.group)
    name = kind.__name__
    group = optimizer.param_groups[variable.group]
    if kind not in SPARSE_OPTIMIZERS:
        known = ", ".join(known.__name__ for known in SPARSE_OPTIMIZERS)
        raise NotSupported(
            f"variable {variable.name!r} has a sparse gradient, which optimizer {name} does not "
            "take.",
            thing="optimizer",
            value=name,
            remedy=f"Use one of {known}, or sparse=False on its embedding and tune again.",
        )
    for option in ("weight_decay", "fused"):
        if group.get(option):
            raise NotSupported(
                f"variable {variable.name!r} has a sparse gradient, which {name} does not take "
                f"with {option}.",
                thing=f"optimizer.{option}",
                value=group[option],
                remedy=f"Give it a parameter group of its own without {option}.",
            )


class RowUpdate:
    """Updates the tables' rows of a bucket that this rank owns, where they lie.

    The optimizer's state of the rows lives here, by range: `tables` are views of their rows.
    """

    def __init__(self, optimizer_class: type[Optimizer], bucket: Bucket):
        self.optimizer_class = optimizer_class
        self.bucket = bucket
        self.tables = [rows.variable.alias[rows.start : rows.stop] for rows in bucket.ranges]
        self.state: defaultdict[Tensor, Any] = defaultdict(dict)

    def run(self, optimizer: Optimizer, settings: Settings, unused: Callable[[int], bool]) -> None:
        """From summed rows to new values, and which rows these are."""
        pairs = list(zip(self.bucket.ranges, self.tables, strict=True))
        for rows, table in pairs:
            table.grad = None if unused(rows.variable.index) else rows.sums
        groups = grouped(((rows.variable.group, table) for rows, table in pairs), settings)
        step_twin(self.optimizer_class, optimizer, groups, self.state)
        for rows, table in pairs:
            table.grad = None
            rows.changed = rows.start + self._changed(rows, table)

    def _changed(self, rows: RowRange, table: Tensor) -> Tensor:
        """Momentum moves every row that was ever touched."""
        assert rows.sums is not None  # reduced before it is updated
        buffer = self.state[table].get("momentum_buffer") if table in self.state else None
        if buffer is not None and buffer.is_sparse:
            moving: Tensor = torch.unique(buffer._indices()[0])
            return moving
        return rows.sums._indices()[0]

    def follow_tables(self) -> None:
        """A table has another storage now; the state is kept by what stands for its rows."""
        for rows, table in zip(self.bucket.ranges, self.tables, strict=True):
            table.data = rows.variable.alias[rows.start : rows.stop]

    def gradients(self) -> list[Tensor]:
        return [rows.sums._values() for rows in self.bucket.ranges if rows.sums is not None]

    def held_ranges(self) -> Iterator[HeldRange]:
        for rows, table in zip(self.bucket.ranges, self.tables, strict=True):
            origin = (rows.start,) + (0,) * (table.dim() - 1)
            state = self.state[table]
            yield HeldRange(rows.variable, rows.start, rows.stop, state, partial(_part, origin))

    def begin_state(self, optimizer: Optimizer, settings: Settings, groups: Sequence[int]) -> None:
        """What the optimizer makes of a step on no rows, where it has no state yet."""
        bare = [
            (rows.variable.group, table)
            for rows, table in zip(self.bucket.ranges, self.tables, strict=True)
            if rows.variable.group in groups and not self.state.get(table)
        ]
        for _, table in bare:
            rows = torch.empty(0, dtype=torch.int64, device=table.device)
            values = table.new_empty(0, *table.shape[1:])
            table.grad = sparse_tensor((rows, values), tuple(table.shape), coalesced=True)
        step_twin(self.optimizer_class, optimizer, grouped(bare, settings), self.state)
        for _, table in bare:
            table.grad = None

    def take_state(self, optimizer: Optimizer) -> None:
        """The rows' part of what the script's optimizer holds."""
        for rows, table in zip(self.bucket.ranges, self.tables, strict=True):
            held = rows.variable.group >= 0
            whole = held_state(optimizer).get(rows.variable.parameter, {}) if held else {}
            self.state[table] = {
                key: _narrowed(value, rows) if _per_row(value, rows.variable) else _copied(value)
                for key, value in whole.items()
            }


def _per_row(value: Any, variable: VariableRecord) -> bool:
    return isinstance(value, Tensor) and value.shape == variable.alias.shape


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _narrowed(value: Tensor, rows: RowRange) -> Tensor:
    if not value.is_sparse:
        return value[rows.start : rows.stop].clone()
    value = value.coalesce()
    indices = value._indices()[0]
    inside = (indices >= rows.start) & (indices < rows.stop)
    shape = (rows.stop - rows.start, *value.shape[1:])
    moved = (indices[inside] - rows.start, value._values()[inside])
    return sparse_tensor(moved, shape, coalesced=True)


def fill_rows(
    optimizer: Optimizer, rows: RowRange, of_rows: dict[str, Any], device: torch.device
) -> None:
    """Put an owner's state of some rows into the script's optimizer. device: where it is held."""
    if rows.variable.group < 0:
        return
    table = rows.variable.alias
    state = held_state(optimizer)[rows.variable.parameter]
    for key, value in of_rows.items():
        if not isinstance(value, Tensor) or not value.dim():
            state[key] = _copied(value)
        elif value.is_sparse:
            summed = value.coalesce()
            moved = (summed._indices()[0] + rows.start, summed._values())
            here = sparse_tensor(moved, tuple(table.shape)).to(device)
            state[key] = (state[key] + here if key in state else here).coalesce()
        else:
            if key not in state:
                state[key] = torch.zeros_like(table, dtype=value.dtype, device=device)
            state[key][rows.start : rows.stop] = value.to(device)


def _part(origin: Shape, value: Tensor) -> list[tuple[Shape, Tensor]]:
    """Checkpoints hold dense tensors: a sparse momentum is filled with zeros."""
    return [(origin, value.to_dense() if value.is_sparse else value)]


def show_rows(bucket: Bucket) -> None:
    """Make `parameter.grad` hold the summed rows that this rank updates, and one row of zeros
    where it updates none: what a GradScaler inspects and unscales."""
    for variable in bucket.variables:
        _show_rows(variable)


def _show_rows(variable: VariableRecord) -> None:
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


def take_rows_back(bucket: Bucket) -> None:
    """What was done to shown rows is done to the sums."""
    for rows in bucket.ranges:
        gradient = rows.variable.parameter.grad
        if rows.sums is None or gradient is None or not rows.sums._nnz():
            continue
        indices = gradient._indices()[0]
        inside = (indices >= rows.start) & (indices < rows.stop)
        rows.sums._values().copy_(gradient._values()[inside])
