"""Updates of the parts of a bucket that this rank owns or holds a shard of, with the script's own
optimizer: flat ranges of a buffer, or rows of tables with sparse gradients. The optimizer's state
of the parts lives here."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from autosync.errors import NotSupported
from autosync.runtime.compression.rows import sparse_tensor
from autosync.runtime.device.model_tensors import Shape
from autosync.runtime.layout.records import Bucket, HeldRange, RowRange, Settings, VariableRecord
from autosync.runtime.updates.optimizers import class_of_group, grouped, held_state, step_shadow
from autosync.runtime.updates.state_parts import boxes_of

SCALARS = ("step", "mu_product")
"""State of the elementwise optimizers that belongs to a whole variable."""

SPARSE_OPTIMIZERS: tuple[type[Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.Adagrad,
    torch.optim.SparseAdam,
)
"""torch's optimizers that take sparse gradients. Exact classes: a subclass may do anything."""


@dataclass(slots=True)
class Part:
    """Elements start:stop of a bucket's buffer, or rows of a table.

    value: the tensor that stands for them in the optimizer. place: of their gradient and of their
        new value in the buffer; None for rows.
    """

    variable: VariableRecord
    start: int
    stop: int
    value: Tensor
    place: Tensor | None = None


class PartUpdate:
    """state: of each part, by its `value`."""

    def __init__(self, bucket: Bucket, parts: list[Part]):
        self.bucket = bucket
        self.parts = parts
        self.state: defaultdict[Tensor, Any] = defaultdict(dict)

    def begin_state(
        self, optimizer: Optimizer, settings: Settings, asked: Collection[VariableRecord]
    ) -> None:
        """What the optimizer makes of a step on zeros, where it has no state yet."""
        bare = [p for p in self.parts if p.variable in asked and not self.state.get(p.value)]
        for part in bare:
            part.value.grad = self._zeros(part)
        self._step(optimizer, settings, bare)
        for part in bare:
            part.value.grad = part.place

    def held_ranges(self) -> Iterator[HeldRange]:
        for part in self.parts:
            boxes = partial(self._boxes, part)
            state = self.state[part.value]
            yield HeldRange(part.variable, part.start, part.stop, state, boxes)

    def take_state(self, optimizer: Optimizer) -> None:
        """This rank's part of what the script's optimizer holds."""
        held = held_state(optimizer)
        for part in self.parts:
            whole = held.get(part.variable.parameter, {}) if part.variable.group >= 0 else {}
            self.state[part.value] = {
                key: self._own(part, key, value) for key, value in whole.items()
            }

    def _step(self, optimizer: Optimizer, settings: Settings, parts: Iterable[Part]) -> None:
        groups = grouped(((part.variable.group, part.value) for part in parts), settings)
        step_shadow(optimizer, groups, self.state)

    def _zeros(self, part: Part) -> Tensor:
        raise NotImplementedError

    def _boxes(self, part: Part, value: Tensor) -> list[tuple[Shape, Tensor]]:
        raise NotImplementedError

    def _own(self, part: Part, key: str, value: Any) -> Any:
        raise NotImplementedError


class FlatUpdate(PartUpdate):
    """Updates elements start:stop of a bucket's buffer: an owner's bucket, or a rank's chunk."""

    def __init__(self, bucket: Bucket, start: int, stop: int):
        self.span = slice(start, stop)
        ranges: list[tuple[VariableRecord, int, int]] = []
        for variable, segment, _ in bucket.pieces:
            low, high = max(segment.start, start), min(segment.stop, stop)
            if low < high:
                if ranges and ranges[-1][::2] == (variable, low):
                    low = ranges.pop()[1]
                ranges.append((variable, low, high))
        super().__init__(bucket, [])
        for variable, low, high in ranges:
            place = bucket.buffer[low:high]
            self.parts.append(Part(variable, low, high, torch.zeros_like(place), place))
            self.parts[-1].value.grad = place

    def run(self, optimizer: Optimizer, settings: Settings, unused: Callable[[int], bool]) -> None:
        """From reduced gradients in the buffer to new values in the same places; variables that
        no rank used keep theirs."""
        for part in self.parts:
            self._load(part)
        used = (part for part in self.parts if not unused(part.variable.index))
        self._step(optimizer, settings, used)
        for place, part in zip(self.gradients(), self.parts, strict=True):
            place.copy_(part.value)

    def gradients(self) -> list[Tensor]:
        return [part.place for part in self.parts if part.place is not None]

    def _load(self, part: Part) -> None:
        """The current values of the part."""
        for variable, segment, _ in self.bucket.pieces:
            start, stop = max(part.start, segment.start), min(part.stop, segment.stop)
            if start < stop:
                values = segment.flat_of(variable.alias)
                found = values[start - segment.start : stop - segment.start]
                part.value[start - part.start : stop - part.start].copy_(found)

    def _zeros(self, part: Part) -> Tensor:
        self._load(part)
        return torch.zeros_like(part.value)

    def _boxes(self, part: Part, value: Tensor) -> list[tuple[Shape, Tensor]]:
        boxes = boxes_of(self.bucket, part.start, part.stop)
        return [(box.origin, box.view(value, part.start)) for _, box in boxes]

    def _own(self, part: Part, key: str, value: Any) -> Any:
        if key in SCALARS or not isinstance(value, Tensor):
            return _copied(value)
        own = torch.zeros_like(part.value, dtype=value.dtype)
        for _, box in boxes_of(self.bucket, part.start, part.stop):
            box.view(own, part.start).copy_(value[box.region])
        return own


class RowUpdate(PartUpdate):
    """Updates the tables' rows of a bucket that this rank owns, where they lie."""

    def __init__(self, bucket: Bucket):
        parts = [
            Part(rows.variable, rows.start, rows.stop, rows.variable.alias[rows.start : rows.stop])
            for rows in bucket.ranges
        ]
        super().__init__(bucket, parts)

    def run(self, optimizer: Optimizer, settings: Settings, unused: Callable[[int], bool]) -> None:
        """From summed rows to new values, and which rows these are."""
        for part, rows in zip(self.parts, self.bucket.ranges, strict=True):
            part.value.grad = None if unused(rows.variable.index) else rows.sums
        self._step(optimizer, settings, self.parts)
        for part, rows in zip(self.parts, self.bucket.ranges, strict=True):
            part.value.grad = None
            rows.changed = rows.start + self._changed(part, rows)

    def _changed(self, part: Part, rows: RowRange) -> Tensor:
        """Momentum moves every row that was ever touched; a dense one, of a checkpoint of dense
        gradients, moves all."""
        assert rows.sums is not None  # reduced before it is updated
        buffer = self.state[part.value].get("momentum_buffer") if part.value in self.state else None
        if buffer is None:
            return rows.sums._indices()[0]
        if not buffer.is_sparse:
            return torch.arange(part.stop - part.start, device=buffer.device)
        moving: Tensor = torch.unique(buffer._indices()[0])
        return moving

    def follow_tables(self) -> None:
        """A table has another storage now; the state is kept by what stands for its rows."""
        for part in self.parts:
            part.value.data = part.variable.alias[part.start : part.stop]

    def gradients(self) -> list[Tensor]:
        return [rows.sums._values() for rows in self.bucket.ranges if rows.sums is not None]

    def _zeros(self, part: Part) -> Tensor:
        rows = torch.empty(0, dtype=torch.int64, device=part.value.device)
        values = part.value.new_empty(0, *part.value.shape[1:])
        return sparse_tensor((rows, values), tuple(part.value.shape), coalesced=True)

    def _boxes(self, part: Part, value: Tensor) -> list[tuple[Shape, Tensor]]:
        """Checkpoints hold dense tensors: a sparse momentum is filled with zeros."""
        origin = (part.start,) + (0,) * (part.value.dim() - 1)
        return [(origin, value.to_dense() if value.is_sparse else value)]

    def _own(self, part: Part, key: str, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.shape != part.variable.alias.shape:
            return _copied(value)
        if not value.is_sparse:
            return value[part.start : part.stop].clone()
        value = value.coalesce()
        indices = value._indices()[0]
        inside = (indices >= part.start) & (indices < part.stop)
        moved = (indices[inside] - part.start, value._values()[inside])
        return sparse_tensor(moved, tuple(part.value.shape), coalesced=True)


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


def check_sparse(optimizer: Optimizer, variable: VariableRecord) -> None:
    """Raises NotSupported where the optimizer cannot apply sparse gradients to the variable."""
    if variable.group < 0:
        return
    kind = class_of_group(optimizer, variable.group)
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
                f"variable {variable.name!r} has a sparse gradient, which {kind.__name__} does not "
                f"take with {option}.",
                thing=f"optimizer.{option}",
                value=group[option],
                remedy=f"Give it a parameter group of its own without {option}.",
            )


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
