"""Ranks whose models are not alike: refused by name on every rank, before any value travels."""

import pytest
import torch
from torch import nn

from autosync.errors import InvalidInput
from autosync.runtime.transport.rank_agreement import share_initial_values
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
