"""What trials leave of a job's optimizers: those inside of others are put back, too."""

from typing import Any

import torch
from torch import nn

from autosync.trials.live.snapshot import take_snapshot
from tests.autosync.runtime.updates.test_optimizer_scope import Ahead, Counting


def test_an_optimizer_inside_another_is_put_back() -> None:
    """And what an optimizer counts in an attribute."""
    model = nn.Linear(3, 2)
    ahead, counting = Ahead(model.parameters(), 0.1), Counting(model.parameters(), 0.1)
    before = take_snapshot(model, [ahead, counting])
    model(torch.ones(1, 3)).sum().backward()
    ahead.step()
    counting.step()
    assert len(ahead.fast.state) == 2
    assert counting.steps == 1
    before.restore()
    assert not ahead.fast.state
    assert counting.steps == 0


class OfCopies(torch.optim.Optimizer):
    """Trains copies of the parameters by another optimizer, as where parameters are of lower
    precision. Shows the state of the other one as its own."""

    def __init__(self, parameters: list[nn.Parameter]):
        super().__init__(parameters, {})
        self.parameters = parameters
        self.copies = [parameter.detach().double() for parameter in parameters]
        self.inner = torch.optim.SGD(self.copies, lr=0.1, momentum=0.9)
        self.state = self.inner.state

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter, copy in zip(self.parameters, self.copies, strict=True):
            copy.grad = None if parameter.grad is None else parameter.grad.double()
        self.inner.step()
        for parameter, copy in zip(self.parameters, self.copies, strict=True):
            parameter.copy_(copy)


def test_what_an_optimizer_inside_another_trains_is_put_back() -> None:
    """And a state that both show is saved once."""
    model = nn.Linear(3, 2)
    optimizer = OfCopies(list(model.parameters()))
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    values = [copy.clone() for copy in optimizer.copies]
    moments = [state["momentum_buffer"].clone() for state in optimizer.state.values()]
    before = take_snapshot(model, [optimizer])
    optimizer.step()
    before.restore()
    assert all(map(torch.equal, values, optimizer.copies))
    held = [optimizer.inner.state[copy]["momentum_buffer"] for copy in optimizer.copies]
    assert all(map(torch.equal, moments, held))
    assert before.optimizers[0].state is before.optimizers[1].state
