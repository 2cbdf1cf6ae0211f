"""The parts of a tensor of the optimizer's state that one rank holds, as it is saved and loaded by
torch.distributed.checkpoint: boxes of the whole tensor, by the methods that DTensor has, too.

A rank updates flat ranges of buckets, and a range of a variable is at most 2n - 1 boxes. So another
plan, another number of ranks, and torch's own engines can load what one plan has saved in parts.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from autosync.errors import InvalidInput, NotSupported
from autosync.runtime.device.model_tensors import Shape
from autosync.runtime.layout.records import Bucket, VariableRecord
from autosync.runtime.layout.segments import boxes

if TYPE_CHECKING:  # a second of every process's start; who calls these methods has loaded it
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
    from torch.distributed.checkpoint.planner import WriteItem

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a variable that lies at start:stop of a bucket's flat buffer.

    origin, sizes: in the variable. order: its dimensions as memory has them, the outermost first.
    """

    origin: Shape
    sizes: Shape
    start: int
    stop: int
    order: Shape

    @property
    def region(self) -> tuple[slice, ...]:
        """Of the variable."""
        return tuple(slice(o, o + s) for o, s in zip(self.origin, self.sizes, strict=True))

    def view(self, flat: Tensor, begin: int) -> Tensor:
        """What is the box's of a flat tensor, in the box's form. begin: where in the bucket the
        flat tensor begins."""
        extent = [self.sizes[dimension] for dimension in self.order]
        back = [self.order.index(dimension) for dimension in range(len(self.order))]
        return flat[self.start - begin : self.stop - begin].view(extent).permute(back)


def boxes_of(bucket: Bucket, start: int, stop: int) -> Iterator[tuple[VariableRecord, Box]]:
    """Elements start:stop of a bucket's flat buffer, as boxes of its variables."""
    for variable, segment, view in bucket.pieces:
        low, high = max(start, segment.start), min(stop, segment.stop)
        strides = view.stride()
        order = tuple(sorted(range(view.dim()), key=lambda dimension: -strides[dimension]))
        shape = tuple(segment.shape[dimension] for dimension in order)
        place = low
        for inner, extent in boxes(shape, low - segment.start, high - segment.start):
            origin, sizes = [0] * len(order), [0] * len(order)
            for dimension, o, e in zip(order, inner, extent, strict=True):
                origin[dimension] = segment.region[dimension].start + o
                sizes[dimension] = e
            length = torch.Size(extent).numel()
            yield variable, Box(tuple(origin), tuple(sizes), place, place + length, order)
            place += length


class StateParts(Tensor):
    """Has the shape and type of a tensor of which this rank holds some boxes, which may be none.

    parts: (origin, values) of each. They are the optimizer's own memory until somebody copies them.
    For torch.distributed.checkpoint alone: whatever else reads values is refused, pickling too, so
    that no script saves a part for the whole.
    """

    parts: list[tuple[Shape, Tensor]]

    @staticmethod
    def made(
        shape: Shape, dtype: torch.dtype, parts: Iterable[tuple[Shape, Tensor]]
    ) -> "StateParts":
        host = torch.device("cpu")
        made: StateParts = Tensor._make_wrapper_subclass(
            StateParts, shape, dtype=dtype, device=host
        )
        made.parts = list(parts)
        return made

    def held(self, origin: Shape, sizes: Shape) -> Tensor:
        """Raises InvalidInput where there is no such part."""
        for begin, values in self.parts:
            if begin == origin and tuple(values.shape) == sizes:
                return values
        raise InvalidInput(
            f"the state has no part of shape {sizes} at {origin}: it was made under another plan.",
            thing="state_dict",
            value=[(begin, tuple(values.shape)) for begin, values in self.parts[:8]],
            remedy="Give torch.distributed.checkpoint.load the autosync.TrainingState itself.",
        )

    def __create_write_items__(self, name: str, _: Any) -> "list[WriteItem]":
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        return [
            WriteItem(
                index=MetadataIndex(name, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=chunk,
                    properties=TensorProperties(dtype=self.dtype),
                    size=self.size(),
                ),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> "list[ChunkStorageMetadata]":
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [
            ChunkStorageMetadata(offsets=torch.Size(origin), sizes=values.size())
            for origin, values in self.parts
        ]

    def __get_tensor_shard__(self, index: "MetadataIndex") -> Tensor:
        wanted = tuple(index.offset or ())
        return next(values for origin, values in self.parts if origin == wanted)

    def _changed(self, change: Callable[[Tensor], Tensor]) -> "StateParts":
        parts = [(origin, change(values)) for origin, values in self.parts]
        return StateParts.made(tuple(self.shape), self.dtype, parts)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub leaves `func` out
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """What checkpoints stage copies by: each part by itself."""
        given = kwargs or {}
        match func:
            case aten.detach.default:
                return args[0]._changed(Tensor.detach)
            case aten.clone.default:
                return args[0]._changed(Tensor.clone)
            case aten._to_copy.default if given.get("dtype", args[0].dtype) == args[0].dtype:
                return args[0]._changed(lambda t: t.to(given.get("device", t.device), copy=True))
            case aten.zeros_like.default | aten.empty_like.default:
                device = given.get("device")
                return args[0]._changed(lambda t: torch.zeros_like(t, device=device or t.device))
            case aten.new_empty.default:  # its parts are set next
                return StateParts.made(tuple(args[1]), args[0].dtype, [])
            case aten.copy_.default if all(isinstance(one, StateParts) for one in args[:2]):
                for origin, values in args[0].parts:
                    values.copy_(args[1].held(origin, tuple(values.shape)))
                return args[0]
        raise _incomplete(func)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise _incomplete("pickle")

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]  # torch's stub misnames it
        held = sum(values.numel() for _, values in self.parts)
        return f"StateParts({tuple(self.shape)}, {self.dtype}, {held} elements held)"


def _incomplete(what: object) -> NotSupported:
    return NotSupported(
        f"a part of a tensor of the optimizer's state was given to {what}: other ranks hold the "
        "rest.",
        thing="autosync.TrainingState",
        value=str(what),
        remedy="Give the autosync.TrainingState to torch.distributed.checkpoint.save, or call "
        "optimizer.state_dict() for a whole state.",
    )
