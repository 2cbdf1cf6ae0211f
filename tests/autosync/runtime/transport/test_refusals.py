"""What ends training on one rank ends it on the others, in the same words, while that rank's
process lives on."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from autosync.strategy import AllGather, AllReduce, Synchronizer
from tests.autosync.runtime import rows
from tests.autosync.runtime.cases import Case, data, make_optimizer
from tests.autosync.runtime.distributing import (
    CASES,
    LATE,
    PLANS,
    distributed,
    ended_alone,
    looking_often,
)
from tests.autosync.runtime.ranks import Ranks
from tests.long_parameters import long_after

LAST = 2
"""The iteration in which one rank does what it may not."""


class Odd(nn.Module):
    """`odd` is what this rank does in this iteration. The bias of the first layer is frozen."""

    seen: Tensor
    odd = ""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(6, 6)
        self.first.bias.requires_grad_(False)
        self.net = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.predict(x)

    def predict(self, x: Tensor) -> Tensor:
        if self.odd == "buffer":
            self.seen = torch.cat([self.seen, self.seen])
        hidden = torch.tanh(self.first(x))
        if self.odd == "twice":
            hidden = checkpoint(self.first, hidden, use_reentrant=True)
        if self.odd in ("nested", "twice"):
            out: Tensor = checkpoint(self.net, hidden, use_reentrant=True)
            return out
        out = self.net(hidden)
        return out


Act = Callable[[Odd, Optimizer], None]


def step(model: Odd, optimizer: Optimizer) -> None:
    optimizer.step()


def replace_buffer(model: Odd, optimizer: Optimizer) -> None:
    model.seen = torch.zeros(3)
    optimizer.step()


def replace_layer(model: Odd, optimizer: Optimizer) -> None:
    model.net = nn.Linear(6, 3)
    optimizer.step()


def unfreeze(model: Odd, optimizer: Optimizer) -> None:
    model.first.requires_grad_(True)
    optimizer.step()


def break_closure(model: Odd, optimizer: Optimizer) -> None:
    optimizer.step(lambda: model.loss)  # type: ignore[arg-type,return-value]


def break_update(model: Odd, optimizer: Optimizer) -> None:
    del optimizer.param_groups[0]["lr"]
    optimizer.step()


def break_late_update(model: Odd, optimizer: Optimizer) -> None:
    """In code of the optimizer's own."""

    def fail(*args: object, **kwargs: object) -> None:
        raise ValueError("no such moment")

    with patch.object(torch.optim.SGD, "step", fail):
        optimizer.step()
        model.state_dict()


def break_hook(model: Odd, optimizer: Optimizer) -> None:
    handle = optimizer.register_step_pre_hook(lambda *_: [][1])
    try:
        optimizer.step()
    finally:
        handle.remove()


@dataclass(frozen=True)
class Refused:
    """words: of the refusal. cases: plans that refuse it. act: at `step()`."""

    words: str
    cases: Mapping[str, Case]
    act: Act = step


REFUSED = {
    "buffer": Refused("module buffer 'seen' is torch.float32[2] now", PLANS),
    "replaced": Refused("module buffer 'seen' is torch.float32[3] now", PLANS, replace_buffer),
    "nested": Refused("a reentrant checkpoint runs its own backward", PLANS),
    "twice": Refused("became ready twice in one backward pass", PLANS),
    "layer": Refused("'net.weight' is no longer the parameter", CASES, replace_layer),
    "type": Refused("'first.weight' has type torch.bfloat16", PLANS),
    "unfrozen": Refused("first.bias was unfrozen after autosync.distribute", CASES, unfreeze),
}
ERRORS: dict[Act, str] = {
    break_closure: "AttributeError: 'Odd' object has no attribute 'loss'",
    break_update: "KeyError: 'lr'",
    break_hook: "IndexError: list index out of range",
}


def stopped(rank: int, world: int, case: Case, culprit: int, odd: str, act: Act) -> str:
    """The words of the end."""
    model = Odd()
    optimizer = make_optimizer("sgd", model)
    distributed(rank, world, case, model, optimizer)

    def iterations() -> None:
        for iteration in range(LAST + 3):
            is_odd = (rank, iteration) == (culprit, LAST)
            model.odd = odd if is_odd else ""
            call: Callable[[Tensor], Tensor] = model.predict if odd == "nested" else model
            x, wanted = data(iteration, rank)
            optimizer.zero_grad()
            if model.odd == "type":
                model.bfloat16()
            out = call(x.to(model.first.weight.dtype))
            nn.functional.mse_loss(out, wanted.to(out.dtype)).backward()
            (act if is_odd else step)(model, optimizer)
        model.state_dict()

    with looking_often():
        return ended_alone(model, rank == culprit, iterations)


def by_either(pairs: Iterable[tuple[Any, str]]) -> list[Any]:
    """With each pair a culprit: the ranks in turn, and in `make test-all` the other one, too."""
    turn = count()
    chosen = [(*pair, next(turn) % 2) for pair in pairs]
    others = [(first, name, 1 - culprit) for first, name, culprit in chosen]
    return long_after(len(chosen), chosen + others)


@pytest.mark.parametrize(
    ("odd", "name", "culprit"),
    by_either((odd, name) for name in CASES for odd, one in REFUSED.items() if name in one.cases),
)
def test_a_refusal_on_one_rank_ends_both(pair: Ranks, odd: str, name: str, culprit: int) -> None:
    refused = REFUSED[odd]
    said = pair.run(stopped, CASES[name], culprit, odd, refused.act)
    assert refused.words in said[culprit]
    assert said[1 - culprit] == f"rank {culprit} stopped: {said[culprit]}"


@pytest.mark.parametrize("act", ERRORS)
@pytest.mark.parametrize("name", LATE)
def test_any_error_that_ends_a_step_is_reported_by_name(pair: Ranks, name: str, act: Act) -> None:
    said = pair.run(stopped, LATE[name], 1, "", act)
    assert said[1] == ERRORS[act]
    assert f"rank 1 stopped: optimizer.step() ended with {ERRORS[act]}" in said[0]


ACTS = (*ERRORS, break_late_update)


@pytest.mark.parametrize(
    ("act", "name", "culprit"),
    by_either(
        (act, name) for turn, name in enumerate(PLANS) for act in (*ACTS[turn:], *ACTS[:turn])
    ),
)
def test_the_same_under_exact_plans(pair: Ranks, name: str, act: Act, culprit: int) -> None:
    """An update may run in step() or behind it, on a thread of the runtime. Rank 0 is the server of
    all: rank 1 updates nothing, so it needs no learning rate."""
    if name == "server" and act is break_update:
        culprit = 0
    said = pair.run(stopped, PLANS[name], culprit, "", act)
    words = ERRORS.get(act, "ValueError: no such moment")
    assert words in said[culprit]
    assert said[1 - culprit].startswith(f"rank {culprit} stopped: ")
    assert f" ended with {words}" in said[1 - culprit]


class Lookup(nn.Module):
    """`dense` gives its table a dense gradient."""

    dense = False

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.table = nn.Embedding(11, 6, sparse=True)
        self.net = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        found = nn.functional.embedding(tokens, self.table.weight, sparse=not self.dense)
        out: Tensor = self.net(found)
        return out


def by_rows(shard: int, variable: str, sparse: bool, world: int) -> tuple[int, Synchronizer]:
    return 1, AllGather(0) if sparse else AllReduce(1)


def dense_once(rank: int, world: int, culprit: int) -> str:
    model = Lookup()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows.attached(model, optimizer, rows.plan(model, world, by_rows))

    def iterations() -> None:
        for iteration in range(2 * LAST):
            model.dense = (rank, iteration) == (culprit, LAST)
            optimizer.zero_grad()
            model(torch.tensor([iteration, rank])).square().sum().backward()
            optimizer.step()

    return ended_alone(model, rank == culprit, iterations)


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_table_with_a_dense_gradient_on_one_rank(pair: Ranks, culprit: int) -> None:
    said = pair.run(dense_once, culprit)
    words = "'table.weight' is synchronized by touched rows, but its gradient is dense"
    assert words in said[culprit]
    assert said[1 - culprit] == f"rank {culprit} stopped: {said[culprit]}"
