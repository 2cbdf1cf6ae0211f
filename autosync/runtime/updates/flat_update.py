"""Updates a flat range of a bucket with the user's own optimizer: an owner's part, or a shard."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from autosync.errors import NotSupported
from autosync.runtime.device.strides import Shape
from autosync.runtime.layout.records import Bucket, HeldRange, Settings, VariableRecord
from autosync.runtime.updates.optimizers import grouped, held_state, step_shadow
from autosync.runtime.updates.state_parts import Box, boxes_of

SCALARS = ("step", "mu_product")
"""State of the elementwise optimizers that belongs to a whole variable."""


class FlatUpdate:
    """Updates a range of a bucket in its flat form: an owner's bucket, or a rank's chunk.

    stretches: (start, stop, parameter group, variable), each updated or left alone as one.
    The optimizer's state of the range lives here, in flat tensors.
    """

    def __init__(self, bucket: Bucket, start: int, stop: int):
        self.bucket = bucket
        self.span = slice(start, stop)
        self.stretches: list[tuple[int, int, int, int]] = []
        self.flats: list[Tensor] = []
        self.state: defaultdict[Tensor, Any] = defaultdict(dict)
        for variable, segment, _ in bucket.pieces:
            low, high = max(segment.start, start), min(segment.stop, stop)
            if low < high:
                self._extend(low, high, variable)
        for low, high, _, _ in self.stretches:
            flat = torch.zeros_like(bucket.buffer[low:high])
            flat.grad = bucket.buffer[low:high]
            self.flats.append(flat)

    def _extend(self, low: int, high: int, variable: VariableRecord) -> None:
        if self.stretches and self.stretches[-1][1:] == (low, variable.group, variable.index):
            low = self.stretches.pop()[0]
        self.stretches.append((low, high, variable.group, variable.index))

    def run(self, optimizer: Optimizer, settings: Settings, unused: Callable[[int], bool]) -> None:
        """From reduced gradients in the buffer to new values in the same places; variables that
        no rank used keep theirs."""
        for (low, high, _, _), flat in zip(self.stretches, self.flats, strict=True):
            for start, stop, value in self._values(low, high):
                flat[start - low : stop - low].copy_(value)
        groups = grouped(
            (
                (stretch[2], flat)
                for stretch, flat in zip(self.stretches, self.flats, strict=True)
                if not unused(stretch[3])
            ),
            settings,
        )
        step_shadow(optimizer, groups, self.state)
        for (low, high, _, _), flat in zip(self.stretches, self.flats, strict=True):
            self.bucket.buffer[low:high].copy_(flat)

    def gradients(self) -> list[Tensor]:
        return [self.bucket.buffer[low:high] for low, high, _, _ in self.stretches]

    def held_ranges(self) -> Iterator[HeldRange]:
        for (low, high, _, _), flat in zip(self.stretches, self.flats, strict=True):
            found = list(boxes_of(self.bucket, low, high))
            parts = partial(_parts, [box for _, box in found], low)
            yield HeldRange(found[0][0], low, high, self.state[flat], parts)

    def begin_state(self, optimizer: Optimizer, settings: Settings, groups: Sequence[int]) -> None:
        """What the optimizer makes of a step on zeros, where it has no state yet."""
        bare = [
            (stretch, flat)
            for stretch, flat in zip(self.stretches, self.flats, strict=True)
            if stretch[2] in groups and not self.state.get(flat)
        ]
        for (low, high, _, _), flat in bare:
            for start, stop, value in self._values(low, high):
                flat[start - low : stop - low].copy_(value)
            flat.grad = torch.zeros_like(flat)
        pairs = grouped(((stretch[2], flat) for stretch, flat in bare), settings)
        step_shadow(optimizer, pairs, self.state)
        for (low, high, _, _), flat in bare:
            flat.grad = self.bucket.buffer[low:high]

    def take_state(self, optimizer: Optimizer) -> None:
        """This rank's part of what the script's optimizer holds."""
        for (low, high, _, _), flat in zip(self.stretches, self.flats, strict=True):
            self.state[flat] = self._state_of(optimizer, low, high, flat)

    def _state_of(self, optimizer: Optimizer, low: int, high: int, like: Tensor) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for variable, box in boxes_of(self.bucket, low, high):
            held = held_state(optimizer).get(variable.parameter, {}) if variable.group >= 0 else {}
            for key, value in held.items():
                if key in SCALARS or not isinstance(value, Tensor):
                    found[key] = value.clone() if isinstance(value, Tensor) else value
                    continue
                if value.shape != variable.alias.shape:
                    raise _other_shape(variable, key, value)
                target = found.setdefault(key, torch.zeros_like(like, dtype=value.dtype))
                box.view(target, low).copy_(value[box.region])
        return found

    def _values(self, low: int, high: int) -> Iterable[tuple[int, int, Tensor]]:
        """The current values of low:high as (start, stop, flat values)."""
        for variable, segment, _ in self.bucket.pieces:
            start, stop = max(low, segment.start), min(high, segment.stop)
            if start < stop:
                part = segment.flat_of(variable.alias)
                yield start, stop, part[start - segment.start : stop - segment.start]


def _parts(boxes: list[Box], begin: int, flat: Tensor) -> list[tuple[Shape, Tensor]]:
    return [(box.origin, box.view(flat, begin)) for box in boxes]


def _other_shape(variable: VariableRecord, key: str, value: Tensor) -> NotSupported:
    return NotSupported(
        f"the optimizer's state {key!r} of variable {variable.name!r} has shape "
        f"{tuple(value.shape)}, the variable {tuple(variable.alias.shape)}: under this plan each "
        "rank updates some of its elements, and keeps the state of those.",
        thing=f"optimizer.state of {variable.name}",
        value=tuple(value.shape),
        remedy="Put a tensor of the variable's shape there, or remove the entry: the optimizer "
        "begins it anew.",
    )
