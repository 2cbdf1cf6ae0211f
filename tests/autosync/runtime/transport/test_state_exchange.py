"""States of any form from the ranks that hold them to those that want them."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from autosync.errors import NotSupported
from autosync.runtime.transport import state_exchange
from autosync.runtime.transport.state_exchange import Key, exchange_states
from tests.autosync.runtime.distributing import largest_difference
from tests.autosync.runtime.ranks import Ranks


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


def exchanged(rank: int, world: int, to: int | None, piece_bytes: int) -> bool:
    group = dist.distributed_c10d._get_default_group()
    with patch.object(state_exchange, "PIECE_BYTES", piece_bytes):
        found = dict(exchange_states(group, states_of(rank), to))
    if to not in (None, rank):
        return found == {}
    wanted: dict[Key, Any] = {}
    for other in range(world):
        for key, state in states_of(other):
            wanted.setdefault(key, state)
    kinds = [
        (value.dtype, value.shape, value.is_sparse)
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


@pytest.mark.parametrize("piece_bytes", [7, 64, 2**20])
@pytest.mark.parametrize("to", [None, 0, 1])
def test_states_arrive_as_they_are(pair: Ranks, to: int | None, piece_bytes: int) -> None:
    assert pair.run(exchanged, to, piece_bytes) == [True, True]


def unknown(rank: int, world: int) -> str:
    group = dist.distributed_c10d._get_default_group()
    state = {"found": {1, 2}} if rank == 1 else {"found": torch.ones(2)}
    with pytest.raises(NotSupported) as caught:
        list(exchange_states(group, [((rank,), state)]))
    return str(caught.value)


def test_what_cannot_be_sent_is_refused_on_every_rank(pair: Ranks) -> None:
    first, second = pair.run(unknown)
    assert first == second
    assert "state 'found' is a set" in first
