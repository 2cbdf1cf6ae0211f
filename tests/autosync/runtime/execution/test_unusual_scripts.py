"""Scripts that call the model, its gradients or its weights in unusual ways, beside torch's DDP."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations, parametrize

import autosync
from tests.autosync.runtime import rows
from tests.autosync.runtime.cases import Case, Cnn, data, make_optimizer, mlp, worst_difference
from tests.autosync.runtime.compression.test_factors import Net, choose, drawn, loss
from tests.autosync.runtime.distributing import distributed
from tests.autosync.runtime.parts import linear
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.training import OVERLAP

PLANS = {
    "all-reduce": Case(),
    "overlapped": Case(schedule=OVERLAP),
    "reduce-scatter": Case(method="rs", partition="even", schedule=OVERLAP),
    "sharded": Case(method="zero", partition="even", schedule=OVERLAP),
    "server": Case(method="ps", schedule=OVERLAP),
}
ITERATIONS = 3


def mse(outputs: Tensor, iteration: int, rank: int) -> Tensor:
    return nn.functional.mse_loss(outputs.float(), data(iteration, rank)[1])


def plain(network: nn.Module, iteration: int, rank: int) -> None:
    mse(network(data(iteration, rank)[0]), iteration, rank).backward()


Pass = Callable[[nn.Module, int, int], None]
"""Forward and backward of (network, iteration, rank). The network is the model or torch's DDP."""


@dataclass(frozen=True)
class Unusual:
    """behind: done to the model after `step()`. ours: the pass under a plan, where it differs."""

    passes: Pass = plain
    build: Callable[[], nn.Module] = mlp
    behind: Callable[[nn.Module, int], None] = lambda model, iteration: None
    ours: Pass | None = None
    sets_to_none: bool = True


def bare(network: nn.Module) -> nn.Module:
    return network.module if isinstance(network, DistributedDataParallel) else network


def by_functional_call(network: nn.Module, iteration: int, rank: int) -> None:
    held: dict[str, Tensor] = dict(network.named_parameters())
    mse(functional_call(network, held, data(iteration, rank)[0]), iteration, rank).backward()


def two_forwards(network: nn.Module, iteration: int, rank: int) -> None:
    """Of a pair of inputs, in one loss."""
    first, second = (network(data(iteration + 50 * i, rank)[0]) for i in range(2))
    (first - second).square().mean().backward()


def gradient_penalty(network: nn.Module, iteration: int, rank: int) -> None:
    inputs = data(iteration, rank)[0].requires_grad_()
    outputs = network(inputs)
    (slopes,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
    (mse(outputs, iteration, rank) + (slopes.norm(dim=1) - 1).square().mean()).backward()


def penalty_of_slopes(network: nn.Module, iteration: int, rank: int) -> None:
    """Gradients of the parameters are in the loss."""
    loss = mse(network(data(iteration, rank)[0]), iteration, rank)
    slopes = torch.autograd.grad(loss, list(network.parameters()), create_graph=True)
    (loss + 0.1 * torch.stack([s.square().sum() for s in slopes]).sum()).backward()


def two_losses(network: nn.Module, iteration: int, rank: int) -> None:
    outputs = network(data(iteration, rank)[0])
    torch.autograd.backward([mse(outputs, iteration, rank), outputs.square().mean()])


def a_loss_behind_another(network: nn.Module, iteration: int, rank: int) -> None:
    """The first of one graph under no_sync."""
    with network.no_sync():  # type: ignore[operator]
        plain(network, iteration + 50, rank)
    plain(network, iteration, rank)


def autocast(network: nn.Module, iteration: int, rank: int) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        outputs = network(data(iteration, rank)[0])
    mse(outputs, iteration, rank).backward()


def behind_an_error(network: nn.Module, iteration: int, rank: int) -> None:
    """Of a backward pass that fails before any gradient. Then layers are called by themselves."""
    outputs = network(data(iteration, rank)[0])
    outputs.register_hook(failing)
    with pytest.raises(ArithmeticError):
        mse(outputs, iteration, rank).backward()
    outputs = data(iteration, rank)[0]
    for layer in network.children():
        outputs = layer(outputs)
    mse(outputs, iteration, rank).backward()


def failing(gradient: Tensor) -> None:
    raise ArithmeticError


def teacher(network: nn.Module, iteration: int, rank: int) -> None:
    """The model's own outputs are the target of another input."""
    with torch.no_grad():
        wanted = bare(network)(data(iteration + 50, rank)[0])
    nn.functional.mse_loss(network(data(iteration, rank)[0]), wanted).backward()


def clamped(model: nn.Module, iteration: int) -> None:
    for parameter in model.parameters():
        parameter.data.clamp_(-0.3, 0.3)


def decayed(model: nn.Module, iteration: int) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)


def reinitialized(model: nn.Module, iteration: int) -> None:
    torch.manual_seed(iteration)
    linear(model, 2).reset_parameters()


def normalized() -> nn.Module:
    model = mlp()
    parametrizations.weight_norm(linear(model, 0))
    parametrizations.spectral_norm(linear(model, 2))
    return model


def hooked() -> nn.Module:
    """Gradients are changed on their way."""
    model = mlp()
    linear(model, 0).weight.register_hook(lambda gradient: gradient * 2)
    linear(model, 2).register_full_backward_hook(halved)
    return model


def halved(module: nn.Module, into: Any, out_of: Any) -> Any:
    return tuple(None if gradient is None else gradient * 0.5 for gradient in into)


def in_evaluation_mode() -> nn.Module:
    """As one fine-tunes with the statistics of before."""
    return Cnn().eval()


UNUSUAL = {
    "functional call": Unusual(ours=by_functional_call),
    "two forwards": Unusual(two_forwards),
    "gradient penalty": Unusual(gradient_penalty),
    "penalty of slopes": Unusual(penalty_of_slopes),
    "two losses": Unusual(two_losses),
    "a loss behind another": Unusual(a_loss_behind_another),
    "autocast": Unusual(autocast),
    "behind an error": Unusual(ours=behind_an_error),
    "teacher": Unusual(teacher),
    "clamped": Unusual(behind=clamped),
    "decayed": Unusual(behind=decayed),
    "reinitialized": Unusual(behind=reinitialized),
    "normalized": Unusual(build=normalized),
    "hooked": Unusual(build=hooked),
    "evaluation mode": Unusual(build=in_evaluation_mode),
    "gradients set to zero": Unusual(sets_to_none=False),
}


def follow(
    network: nn.Module, optimizer: torch.optim.Optimizer, script: Unusual, passes: Pass, rank: int
) -> None:
    for iteration in range(ITERATIONS):
        optimizer.zero_grad(set_to_none=script.sets_to_none)
        passes(network, iteration, rank)
        optimizer.step()
        script.behind(bare(network), iteration)


def built(script: Unusual) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.default_generator.manual_seed(7)
    model = script.build()
    return model, make_optimizer("sgd", model)


def differences(rank: int, world: int, name: str) -> dict[str, float]:
    script, found = UNUSUAL[name], {}
    alone, beside = built(script)
    follow(DistributedDataParallel(alone), beside, script, script.passes, rank)
    for plan, case in PLANS.items():
        model, optimizer = built(script)
        distributed(rank, world, case, model, optimizer)
        follow(model, optimizer, script, script.ours or script.passes, rank)
        autosync.detach(model)
        found[plan] = worst_difference(model, alone)
    return found


@pytest.mark.parametrize("name", UNUSUAL)
def test_they_train_as_under_ddp(pair: Ranks, name: str) -> None:
    for found in pair.run(differences, name):
        assert max(found.values()) < 3e-6, found


def penalized(model: nn.Module, iteration: int, rank: int) -> Tensor:
    """Slopes for the inputs, and for a weight, are in the loss."""
    assert isinstance(model, Net)
    inputs = drawn(iteration, rank).requires_grad_()
    found: Tensor = model(inputs).square().mean()
    slopes = torch.autograd.grad(found, (inputs, model.last.weight), create_graph=True)
    return found + torch.stack([slope.square().sum() for slope in slopes]).sum()


def doubled(model: nn.Module, iteration: int, rank: int) -> Tensor:
    """The last layer has another weight in this call."""
    assert isinstance(model, Net)
    hidden = model.body(drawn(iteration, rank).view(2, -1, 6))
    out: Tensor = functional_call(model.last, {"weight": 2 * model.last.weight}, hidden)
    return out.square().mean()


class Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2

    def right_inverse(self, x: Tensor) -> Tensor:
        return 2 * x


FACTORED = {"penalized": penalized, "doubled": doubled, "parametrized": loss}


def by_factors(rank: int, world: int, name: str) -> float:
    model, alone = Net(), Net()
    optimizer = make_optimizer("sgd", model)
    attachment = rows.attached(model, optimizer, rows.plan(model, world, choose))
    beside = make_optimizer("sgd", alone)
    for net in (model, alone):
        if name == "parametrized":
            parametrize.register_parametrization(net.last, "weight", Halved())
    rows.train(model, optimizer, FACTORED[name], ITERATIONS, rank)
    attachment.detach()
    shares = rows.shares_of(world, even=True)
    rows.train_alone(alone, beside, FACTORED[name], ITERATIONS, shares)
    return worst_difference(model, alone)


@pytest.mark.parametrize("name", FACTORED)
def test_weights_that_travel_as_factors(pair: Ranks, name: str) -> None:
    """A layer that autograd differentiates twice, and for its weight; one that computes with what
    is made of its weight."""
    assert max(pair.run(by_factors, name)) < 3e-6
