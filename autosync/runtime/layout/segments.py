"""Where the pieces of a bucket lie: in the variables, and in the bucket's flat buffer.

A piece is a range of a shard in row-major order. In an n-dimensional tensor such a range is at
most 2n - 1 boxes, so packing is a few strided copies whatever the axis of the partition.

A variable that is one piece keeps the strides of its parameter in the buffer (channels_last, a
transpose): its gradient is a view of the buffer, and fused optimizers walk through a parameter and
its gradient in the order of memory.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from autosync.plan import Piece, Plan, ShardSpec
from autosync.runtime.device.model_tensors import Shape, memory_order

Box = tuple[Shape, Shape]
"""Origin and extent of a box of a tensor."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The box `region` of a variable lies at start:stop of the bucket's flat buffer.

    strides: of its elements there; row-major where None.
    """

    variable: int
    region: tuple[slice, ...]
    shape: Shape
    start: int
    stop: int
    strides: Shape | None = None

    def view_of(self, buffer: Tensor) -> Tensor:
        """Its place in the bucket's flat buffer, of its shape."""
        flat = buffer[self.start : self.stop]
        if self.strides is None:
            return flat.view(self.shape)
        return flat.as_strided(self.shape, self.strides)

    def flat_of(self, whole: Tensor) -> Tensor:
        """The values of the region in the order in which the buffer has them, `(stop - start,)`: a
        view where the strides allow one. whole: of the variable's shape."""
        part = whole[self.region]
        if self.strides is not None:
            part = part.permute(memory_order(self.strides))
        return part.reshape(-1)


def elements(shape: Shape) -> int:
    return math.prod(shape)


def boxes(shape: Shape, start: int, stop: int) -> Iterator[Box]:
    """Elements start:stop of a tensor in row-major order, as boxes in that order."""
    if start >= stop:
        return
    if not shape or (start == 0 and stop == elements(shape)):
        yield (0,) * len(shape), shape
        return
    inner = elements(shape[1:])
    first, head = divmod(start, inner)
    last, tail = divmod(stop, inner)
    if first == last:
        yield from _in_row(shape, first, head, tail)
        return
    if head:
        yield from _in_row(shape, first, head, inner)
        first += 1
    if last > first:
        yield (first,) + (0,) * (len(shape) - 1), (last - first, *shape[1:])
    yield from _in_row(shape, last, 0, tail)


def _in_row(shape: Shape, row: int, start: int, stop: int) -> Iterator[Box]:
    for origin, extent in boxes(shape[1:], start, stop):
        yield (row, *origin), (1, *extent)


def bucket_segments(plan: Plan, bucket: int, shapes: list[Shape]) -> tuple[Segment, ...]:
    """The segments of a bucket, in buffer order. shapes: of the plan's variables."""
    found: list[Segment] = []
    place = 0
    for variable, axis, offset, shape, start, stop in _joined(plan, bucket, shapes):
        for origin, extent in boxes(shape, start, stop):
            size = elements(extent)
            moved = tuple(
                o + (offset if dimension == axis else 0) for dimension, o in enumerate(origin)
            )
            region = tuple(slice(o, o + e) for o, e in zip(moved, extent, strict=True))
            found.append(Segment(variable, region, extent, place, place + size))
            place += size
    return tuple(found)


def _joined(
    plan: Plan, bucket: int, shapes: list[Shape]
) -> Iterator[tuple[int, int, int, Shape, int, int]]:
    """Pieces as (variable, cut axis or -1, offset on it, shape, start, stop), where neighbours
    that are contiguous in their variable are one."""
    last: tuple[int, int, int, Shape, int, int] | None = None
    for piece in plan.buckets[bucket]:
        this = _range(plan.shards[piece.shard], piece, shapes)
        if last is not None and last[1] == -1 and (last[0], -1, last[5]) == (*this[:2], this[4]):
            last = (*last[:5], this[5])
            continue
        if last is not None:
            yield last
        last = this
    if last is not None:
        yield last


def _range(
    shard: ShardSpec, piece: Piece, shapes: list[Shape]
) -> tuple[int, int, int, Shape, int, int]:
    shape = shapes[shard.variable]
    if shard.axis <= 0:  # contiguous in the variable itself
        unit = 1 if shard.axis < 0 else elements(shape[1:])
        base = shard.offset * unit
        return shard.variable, -1, 0, shape, base + piece.start, base + piece.stop
    cut = (*shape[: shard.axis], shard.length, *shape[shard.axis + 1 :])
    return shard.variable, shard.axis, shard.offset, cut, piece.start, piece.stop
