"""Training that does not call the model itself, and module buffers that modules replace."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.autosync.runtime.beside_ddp import PLANS, complete_late
from tests.autosync.runtime.cases import Case, Cnn, attached, data, make_optimizer, worst_difference
from tests.autosync.runtime.ranks import Ranks


class Holder(nn.Module):
    """A model as frameworks hold it. DDP trains it by forward."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.net = Cnn()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.predict(x)

    def predict(self, x: Tensor) -> Tensor:
        self.mean = 0.5 * self.mean + 0.5 * x.mean(0)  # another tensor each time
        out: Tensor = self.net(x)
        return out


class Checkpointed(Holder):
    """Runs its batch normalization once more in the backward pass, which counts twice."""

    def predict(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.net, x, use_reentrant=False)
        return out


def by_forward(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x)
    return out


def by_method(model: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(model, Holder)
    return model.predict(x)


def by_submodule(model: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(model, Holder)
    model.mean = 0.5 * model.mean + 0.5 * x.mean(0)
    out: Tensor = model.net(x)
    return out


Call = Callable[[nn.Module, Tensor], Tensor]

CALLS: tuple[tuple[type[Holder], Call], ...] = (
    (Holder, by_forward),
    (Holder, by_method),
    (Holder, by_submodule),
    (Checkpointed, by_forward),
)


def train(network: nn.Module, optimizer: torch.optim.Optimizer, rank: int, call: Call) -> None:
    for iteration in range(3):
        x, wanted = data(iteration, rank)
        loss = nn.functional.mse_loss(call(network, x), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def called(rank: int, world: int, case: Case) -> list[tuple[float, list[list[float]]]]:
    """The difference of the parameters from DDP's, and buffers: of rank 0 DDP's own follow."""
    found = []
    for kind, call in CALLS:
        model, plain = kind(), kind()
        optimizer = make_optimizer(case.optimizer, model)
        _, _, attachment = attached(case, world, model=model, optimizer=optimizer)
        complete_late(attachment.engine)
        train(model, optimizer, rank, call)
        buffers = [b.flatten().tolist() for b in model.buffers()]
        attachment.detach()
        network = DistributedDataParallel(plain)
        train(network, make_optimizer(case.optimizer, plain), rank, by_forward)
        if rank == 0:
            pairs = zip(model.buffers(), plain.buffers(), strict=True)
            assert all(torch.allclose(a, b, atol=1e-5) for a, b in pairs), call.__name__
        found.append((worst_difference(model, plain), buffers))
    return found


@pytest.mark.parametrize("plan", PLANS)
def test_whatever_the_script_calls(pair: Ranks, plan: str) -> None:
    first, second = pair.run(called, PLANS[plan])
    for (difference, buffers), (other, others) in zip(first, second, strict=True):
        assert max(difference, other) < 3e-6
        assert buffers == others
