"""What one rank alone refuses late ends training on both, while that rank's process lives on."""

from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from autosync.errors import AutosyncError
from autosync.runtime.attachment import Attachment
from autosync.strategy import AllGather, AllReduce, Synchronizer
from tests.autosync.runtime import rows
from tests.autosync.runtime.beside_ddp import PLANS
from tests.autosync.runtime.cases import Case, attached, data, make_optimizer
from tests.autosync.runtime.ranks import Ranks

LAST = 2
"""The iteration in which one rank does what it may not."""

PATIENCE = timedelta(seconds=30)
"""Half of the process group's timeout."""


class Odd(nn.Module):
    """`odd` is what this rank does in this iteration."""

    seen: Tensor
    odd = ""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(6, 6)
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


WORDS = {
    "buffer": "module buffer 'seen' is torch.float32[2] now",
    "replaced": "module buffer 'seen' is torch.float32[3] now",
    "nested": "a reentrant checkpoint runs its own backward pass",
    "twice": "became ready twice in one backward pass",
}


def ended(
    attachment: Attachment,
    step: Callable[[int], object],
    culprit: bool,
    key: str,
) -> str:
    """The words of the end. The culprit then lives until the other has taken its plan off."""
    store = dist.distributed_c10d._get_default_store()
    said = "nothing"
    try:
        for iteration in range(2 * LAST):
            step(iteration)
        attachment.model.state_dict()
    except AutosyncError as error:
        said = str(error)
    if culprit:
        store.wait([key], PATIENCE)
    attachment.detach(keep_state=False)
    store.set(key, "plan taken off")
    return said


def stopped(rank: int, world: int, case: Case, culprit: int, odd: str, key: str) -> str:
    model = Odd()
    optimizer = make_optimizer(case.optimizer, model)
    made = attached(case, world, model=model, optimizer=optimizer)[2]

    def step(iteration: int) -> None:
        model.odd = odd if (rank, iteration) == (culprit, LAST) else ""
        call: Callable[[Tensor], Tensor] = model.predict if odd == "nested" else model
        x, wanted = data(iteration, rank)
        optimizer.zero_grad()
        nn.functional.mse_loss(call(x), wanted).backward()
        if model.odd == "replaced":
            model.seen = torch.zeros(3)
        optimizer.step()

    return ended(made, step, rank == culprit, key)


@pytest.mark.parametrize("odd", WORDS)
@pytest.mark.parametrize("name", PLANS)
def test_both_ranks_end_with_the_same_words(pair: Ranks, name: str, odd: str) -> None:
    for culprit in (0, 1):
        said = pair.run(stopped, PLANS[name], culprit, odd, f"{name}/{odd}/{culprit}")
        assert WORDS[odd] in said[culprit]
        assert said[1 - culprit] == f"rank {culprit} stopped: {said[culprit]}"


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


def dense_once(rank: int, world: int, culprit: int, key: str) -> str:
    model = Lookup()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = rows.attached(model, optimizer, rows.plan(model, world, by_rows))

    def step(iteration: int) -> None:
        model.dense = (rank, iteration) == (culprit, LAST)
        optimizer.zero_grad()
        model(torch.tensor([iteration, rank])).square().sum().backward()
        optimizer.step()

    return ended(made, step, rank == culprit, key)


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_table_with_a_dense_gradient_on_one_rank(pair: Ranks, culprit: int) -> None:
    said = pair.run(dense_once, culprit, f"rows/{culprit}")
    assert (
        "'table.weight' is synchronized by touched rows, but its gradient is dense" in said[culprit]
    )
    assert said[1 - culprit] == f"rank {culprit} stopped: {said[culprit]}"
