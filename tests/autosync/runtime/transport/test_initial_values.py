"""Ranks whose models are not alike: refused by name on every rank, before any value travels."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autosync.errors import InvalidInput
from autosync.runtime.transport import initial_values
from autosync.runtime.transport.initial_values import share_initial_values
from tests.autosync.runtime.ranks import Ranks

Shapes = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
RANK_0: Shapes = (("mean", (3,), torch.float32), ("count", (), torch.int64))
OTHERS: dict[str, tuple[Shapes, str]] = {
    "shape": (
        (("mean", (4,), torch.float32), ("count", (), torch.int64)),
        "'mean' is torch.float32[3] on rank 0 and torch.float32[4] on rank 1",
    ),
    "type": (
        (("mean", (3,), torch.float64), ("count", (), torch.int64)),
        "'mean' is torch.float32[3] on rank 0 and torch.float64[3] on rank 1",
    ),
    "missing": (
        RANK_0[:1],
        "'count' is torch.int64[] on rank 0 and missing on rank 1",
    ),
    "more": (
        (*RANK_0, ("extra", (2, 2), torch.float32)),
        "'extra' is missing on rank 0 and torch.float32[2, 2] on rank 1",
    ),
    "order": (
        RANK_0[::-1],
        "rank 1 has its tensors in another order than rank 0",
    ),
}


def module_of(shapes: Shapes, value: int) -> nn.Module:
    made = nn.Linear(2, 2)
    for name, shape, dtype in shapes:
        made.register_buffer(name, torch.full(shape, value, dtype=dtype))
    return made


def shared(rank: int, world: int, other: Shapes) -> tuple[str, list[float]]:
    """What rank 1's model is refused for, and the sum of each tensor of it."""
    model = module_of(RANK_0 if rank == 0 else other, 5 + rank)
    group = torch.distributed.group.WORLD
    said = ""
    try:
        share_initial_values(group, model)
    except InvalidInput as error:
        said = str(error)
    return said, [float(buffer.sum()) for buffer in model.buffers()]


@pytest.mark.parametrize(("other", "words"), OTHERS.values(), ids=OTHERS)
def test_tensors_that_differ_are_named_on_every_rank(
    pair: Ranks, other: Shapes, words: str
) -> None:
    (here, _), (there, values) = pair.run(shared, other)
    assert here == there
    assert words in here
    assert values == [float(buffer.sum()) for buffer in module_of(other, 6).buffers()]


def test_models_that_are_alike_get_rank_0s_values(pair: Ranks) -> None:
    assert pair.run(shared, RANK_0) == [("", [15.0, 5.0])] * 2


SHAPE = (2, 3, 4, 5)


class EveryForm(nn.Module):
    """Layouts, types and sizes that a tensor of a model may have."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(rank)
        values = torch.randn(SHAPE)
        self.plain = nn.Parameter(values.clone())
        self.tied = self.plain
        self.laid = nn.Parameter(values.to(memory_format=torch.channels_last))
        self.turned = nn.Parameter(values.flatten(1).t())
        self.apart = nn.Parameter(torch.randn(6, 8)[:, ::2])
        self.scalar = nn.Parameter(torch.tensor(1.0 + rank))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.frozen = nn.Parameter(values.bfloat16(), requires_grad=False)
        self.complex_values = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.doubles = nn.Parameter(torch.randn(5, dtype=torch.float64))
        self.register_buffer("flags", torch.randn(7) > 0)
        self.register_buffer("count", torch.tensor(rank))
        self.register_buffer("bytes", torch.full((5,), rank, dtype=torch.uint8))


class Counting:
    """A process group; counts what it broadcasts."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.sizes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)

    def broadcast(self, tensors: list[Tensor], options: Any) -> Any:
        self.sizes += [tensor.nbytes for tensor in tensors]
        return self.group.broadcast(tensors, options)


def in_chunks(rank: int, world: int, chunk_bytes: int) -> tuple[bool, list[int]]:
    """Whether this rank's values are rank 0's, in the layout that they had; and the messages."""
    model, first = EveryForm(rank), EveryForm(0)
    strides = [tensor.stride() for tensor in (*model.parameters(), *model.buffers())]
    group = Counting(torch.distributed.group.WORLD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(initial_values, "CHUNK_BYTES", chunk_bytes)
        share_initial_values(group, model)
    held = [*model.parameters(), *model.buffers()]
    wanted = [*first.parameters(), *first.buffers()]
    equal = all(torch.equal(a, b) for a, b in zip(held, wanted, strict=True))
    return equal and [tensor.stride() for tensor in held] == strides, group.sizes


@pytest.mark.parametrize("chunk_bytes", [200, 1000, 64 << 20])
def test_values_travel_together_and_keep_their_layout(pair: Ranks, chunk_bytes: int) -> None:
    for right, sizes in pair.run(in_chunks, chunk_bytes):
        assert right
        assert max(sizes) <= chunk_bytes + initial_values.ALIGNMENT_BYTES
        assert chunk_bytes < 64 << 20 or len(sizes) == 1
