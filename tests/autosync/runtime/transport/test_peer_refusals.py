"""What one rank alone refuses late ends training on both, while that rank's process lives on."""

from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from autosync.errors import AutosyncError
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
        if self.odd:
            out: Tensor = checkpoint(self.net, hidden, use_reentrant=True)
            return out
        out = self.net(hidden)
        return out


WORDS = {
    "buffer": "module buffer 'seen' is torch.float32[2] now",
    "nested": "a reentrant checkpoint runs its own backward pass",
    "twice": "became ready twice in one backward pass",
}


def stopped(rank: int, world: int, case: Case, culprit: int, odd: str, key: str) -> str:
    """The words of the end. The culprit then lives until the other has taken its plan off."""
    model = Odd()
    optimizer = make_optimizer(case.optimizer, model)
    _, _, attachment = attached(case, world, model=model, optimizer=optimizer)
    store = dist.distributed_c10d._get_default_store()
    said = "nothing"
    try:
        for iteration in range(2 * LAST):
            model.odd = odd if (rank, iteration) == (culprit, LAST) else ""
            call: Callable[[Tensor], Tensor] = model.predict if odd == "nested" else model
            x, wanted = data(iteration, rank)
            optimizer.zero_grad()
            nn.functional.mse_loss(call(x), wanted).backward()
            optimizer.step()
        model.state_dict()
    except AutosyncError as error:
        said = str(error)
    if rank == culprit:
        store.wait([key], PATIENCE)
    attachment.detach(keep_state=False)
    store.set(key, "plan taken off")
    return said


@pytest.mark.parametrize("odd", WORDS)
@pytest.mark.parametrize("plan", PLANS)
def test_both_ranks_end_with_the_same_words(pair: Ranks, plan: str, odd: str) -> None:
    for culprit in (0, 1):
        said = pair.run(stopped, PLANS[plan], culprit, odd, f"{plan}/{odd}/{culprit}")
        assert WORDS[odd] in said[culprit]
        assert said[1 - culprit] == f"rank {culprit} stopped: {said[culprit]}"
