"""Tensors that ranks send each other: rank 0's values, where models are alike, and states of any
form from the ranks that hold them to those that want them."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from autosync.errors import NotSupported
from autosync.runtime.transport import tensor_exchange
from autosync.runtime.transport.tensor_exchange import Key, exchange_states, share_initial_values
from tests.autosync.runtime.distributing import largest_difference, refusal
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
    "missing": (RANK_0[:1], "'count' is torch.int64[] on rank 0 and missing on rank 1"),
    "more": (
        (*RANK_0, ("extra", (2, 2), torch.float32)),
        "'extra' is missing on rank 0 and torch.float32[2, 2] on rank 1",
    ),
    "order": (RANK_0[::-1], "rank 1 has its tensors in another order than rank 0"),
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
    said = refusal(lambda: share_initial_values(group, model))
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
    with patch.object(tensor_exchange, "CHUNK_BYTES", chunk_bytes):
        share_initial_values(group, model)
    held = [*model.parameters(), *model.buffers()]
    wanted = [*first.parameters(), *first.buffers()]
    equal = all(torch.equal(a, b) for a, b in zip(held, wanted, strict=True))
    return equal and [tensor.stride() for tensor in held] == strides, group.sizes


@pytest.mark.parametrize("chunk_bytes", [200, 1000, 64 << 20])
def test_values_travel_together_and_keep_their_layout(pair: Ranks, chunk_bytes: int) -> None:
    for right, sizes in pair.run(in_chunks, chunk_bytes):
        assert right
        assert max(sizes) <= chunk_bytes
        assert chunk_bytes < 64 << 20 or len(sizes) == 1


class OnDeviceOnly:
    """A process group of one rank; notes where what it broadcasts is."""

    def __init__(self) -> None:
        self.places: list[str] = []

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1

    def allgather(self, received: list[list[Tensor]], sent: list[Tensor]) -> Any:
        received[0][0].copy_(sent[0])
        return SimpleNamespace(wait=lambda: None)

    def broadcast(self, tensors: list[Tensor], options: Any) -> Any:
        self.places += [tensor.device.type for tensor in tensors]
        return SimpleNamespace(wait=lambda: None)


def test_what_is_in_host_memory_travels_where_the_group_moves_it() -> None:
    """Such as a buffer that was left there, where the process group is NCCL's alone."""
    group = OnDeviceOnly()
    with patch.object(tensor_exchange, "place_of", lambda group: torch.device("meta")):
        share_initial_values(group, module_of(RANK_0, 5), group)
    assert group.places == ["meta"]


def states_of(rank: int) -> list[tuple[Key, Any]]:
    """Key (9,) is held by all; the first rank's counts."""
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[0, 3]]), torch.ones(2, 2) + rank, (4, 2), check_invariants=True
    )
    state = {
        "step": torch.tensor(1.1 + rank),
        "moment": torch.arange(30.0).view(5, 6).t() * (rank + 1),
        "half": torch.full((7,), 1 / 3, dtype=torch.bfloat16),
        "flags": torch.tensor([True, False, True]),
        "complex": torch.tensor(1.0 + 2.0j),
        "none": torch.zeros(0, 3),
        "count": torch.tensor(2**62 + rank),
        "rows": sparse,
        "nested": {"list": [None, 1, 0.1, torch.ones(3)], "pair": (True, "text"), 3: {}},
    }
    return [((rank, 5), state), ((9,), {"rank": rank}), ((rank, 6), {})]


def plain(value: Any) -> Any:
    """With dense tensors and lists, for comparison."""
    if isinstance(value, torch.Tensor):
        return (value.to_dense() if value.is_sparse else value).to(torch.complex128)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def exchanged(rank: int, world: int, to: int | None, chunk_bytes: int) -> bool:
    group = dist.distributed_c10d._get_default_group()
    with patch.object(tensor_exchange, "CHUNK_BYTES", chunk_bytes):
        found = dict(exchange_states(group, states_of(rank), to))
    if to not in (None, rank):
        return found == {}
    wanted: dict[Key, Any] = {}
    for other in range(world):
        for key, state in states_of(other):
            wanted.setdefault(key, state)
    kinds = [
        (value.dtype, value.shape, value.is_sparse or value.stride())
        for states in (found, wanted)
        for key in sorted(states)
        for value in states[key].values()
        if isinstance(value, torch.Tensor)
    ]
    same = kinds[: len(kinds) // 2] == kinds[len(kinds) // 2 :]
    exact = {key: state["count"].item() for key, state in found.items() if "count" in state}
    counted = exact == {(other, 5): 2**62 + other for other in range(world)}
    return same and counted and equal(plain(found), plain(wanted))


def equal(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(first[k], second[k]) for k in first)
    if isinstance(first, list):
        pairs = zip(first, second, strict=True)
        return all(equal(one, other) for one, other in pairs)
    return largest_difference(first, second) == 0


@pytest.mark.parametrize("chunk_bytes", [7, 64, 2**20])
@pytest.mark.parametrize("to", [None, 0, 1])
def test_states_arrive_as_they_are(pair: Ranks, to: int | None, chunk_bytes: int) -> None:
    assert pair.run(exchanged, to, chunk_bytes) == [True, True]


def unknown(rank: int, world: int) -> str:
    group = dist.distributed_c10d._get_default_group()
    state = {"found": {1, 2}} if rank == 1 else {"found": torch.ones(2)}
    with pytest.raises(NotSupported) as caught:
        list(exchange_states(group, [((rank,), state)]))
    return str(caught.value)


def test_state_of_unknown_types_is_refused_on_every_rank(pair: Ranks) -> None:
    first, second = pair.run(unknown)
    assert first == second
    assert "state 'found' is a set" in first


def test_each_tensor_is_placed_a_fixed_number_of_times() -> None:
    """Sharded optimizer state comes in thousands of pieces: chunks must not be measured anew for
    each."""
    pieces = [torch.full((3,), float(piece)) for piece in range(300)]
    sent: list[Tensor] = []
    place = tensor_exchange._place_behind
    with patch.object(tensor_exchange, "_place_behind", side_effect=place) as placed:
        here = list(tensor_exchange.transferred(pieces, True, sent.append))
    assert torch.equal(sent[0].view(torch.float32), torch.cat(here))
    assert len(pieces) <= placed.call_count <= 4 * len(pieces)
