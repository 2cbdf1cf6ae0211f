"""Scripts that change the modules of a distributed model: refused by name on every rank, where a
parameter that is trained has come or gone."""

from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.optim import SGD

import autosync
from autosync.errors import AutosyncError
from tests.autosync.runtime.beside_ddp import PLANS, complete_late
from tests.autosync.runtime.cases import (
    Case,
    attached,
    loss_of,
    make_model,
    make_optimizer,
    worst_difference,
)
from tests.autosync.runtime.distributing import DDP, distributed, refusal, train
from tests.autosync.runtime.parts import linear
from tests.autosync.runtime.ranks import Ranks
from tests.long_parameters import long_after

EVERY = {
    **PLANS,
    "mixed": Case(method="mixed", groups=4),
    "ddp": DDP,
    "clocks": Case(method="ps", staleness=1),
}

Change = Callable[[nn.Sequential], list[nn.Parameter]]
"""Of the layers of a model. Returns what the script would train by an optimizer of its own."""


def replaced_layer(model: nn.Sequential) -> list[nn.Parameter]:
    model[2] = nn.Linear(10, 7)
    return list(model[2].parameters())


def replaced_parameter(model: nn.Sequential) -> list[nn.Parameter]:
    model[2].weight = new = nn.Parameter(torch.randn(7, 10))
    return [new]


def replaced_in_its_dictionary(model: nn.Sequential) -> list[nn.Parameter]:
    model[2]._parameters["weight"] = new = nn.Parameter(torch.randn(7, 10))
    return [new]


def loaded_by_assignment(model: nn.Sequential) -> list[nn.Parameter]:
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
    return list(model.parameters())


def removed_layer(model: nn.Sequential) -> list[nn.Parameter]:
    model[2] = nn.Identity()
    model[4] = nn.Linear(10, 3, bias=False)
    return []


class Adapted(nn.Module):
    """A layer beside its low-rank adapter, as LoRA adds one."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, 2, bias=False)
        self.up = nn.Linear(2, layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) + self.up(self.down(x))
        return out


def added_adapter(model: nn.Sequential) -> list[nn.Parameter]:
    model[2] = adapted = Adapted(linear(model, 2))
    return [*adapted.down.parameters(), *adapted.up.parameters()]


def appended_layer(model: nn.Sequential) -> list[nn.Parameter]:
    model.append(nn.Linear(3, 3))
    return list(model[5].parameters())


def registered_parameter(model: nn.Sequential) -> list[nn.Parameter]:
    model[0].register_parameter("scale", nn.Parameter(torch.ones(1)))
    return [model[0].get_parameter("scale")]


LEFT = "' is no longer the parameter that the model had"
ADDED = "was added to the model after autosync.distribute"
CHANGES: dict[Change, str] = {
    replaced_layer: LEFT,
    replaced_parameter: LEFT,
    replaced_in_its_dictionary: LEFT,
    loaded_by_assignment: LEFT,
    removed_layer: LEFT,
    added_adapter: ADDED,
    appended_layer: ADDED,
    registered_parameter: ADDED,
}


def changed(rank: int, world: int, case: Case, change: Change, own: bool) -> str:
    """own: the script trains what is new by an optimizer that distribute does not know, alone."""
    model = make_model("mlp")
    assert isinstance(model, nn.Sequential)
    optimizer = make_optimizer("sgd", model)
    network, _ = distributed(rank, world, case, model, optimizer)
    train(rank, network, [optimizer], range(2))
    new = change(model)
    if own and new:
        for parameter in new:
            parameter.grad = torch.ones_like(parameter)
        found = refusal(SGD(new, lr=0.1).step)
    else:
        found = refusal(lambda: train(rank, network, [optimizer], range(2, 4)))
    with suppress(AutosyncError):  # of a refusal that ended the plan
        autosync.detach(network)
    return found


PAIRS = [
    (plan, change)
    for keep in (True, False)
    for turn, plan in enumerate(EVERY)
    for number, change in enumerate(CHANGES)
    if ((number + turn) % 2 == 0) == keep
]
"""In `make test` each plan meets every other change."""


@pytest.mark.parametrize(("plan", "change"), long_after(len(PAIRS) // 2, PAIRS))
def test_it_is_refused_by_name(pair: Ranks, plan: str, change: Change) -> None:
    for found in pair.run(changed, EVERY[plan], change, False):
        assert CHANGES[change] in found
        assert "autosync.distribute" in found


@pytest.mark.parametrize("plan", PLANS)
def test_so_is_an_optimizer_of_what_is_new(pair: Ranks, plan: str) -> None:
    for change in (replaced_layer, added_adapter):
        for found in pair.run(changed, EVERY[plan], change, True):
            assert CHANGES[change] in found


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x

    def right_inverse(self, x: Tensor) -> Tensor:
        return x / 2


def parametrized(model: nn.Sequential) -> None:
    parametrize.register_parametrization(model[2], "weight", Doubled())


def pruned(model: nn.Sequential) -> None:
    prune.random_unstructured(model[2], "weight", 0.5)


def other_activation(model: nn.Sequential) -> None:
    model[1] = nn.GELU()


def moved(model: nn.Sequential) -> None:
    """The same layers in another place."""
    model[2] = nn.Sequential(model[2], nn.Tanh())


def frozen_beside(model: nn.Sequential) -> None:
    model[2].teacher = nn.Linear(2, 2).requires_grad_(False)


def harmless(rank: int, world: int, case: Case) -> dict[str, float]:
    """The difference from single-process training: torch's DDP loses its hooks by some of them."""
    found = {}
    for change in (parametrized, pruned, other_activation, moved, frozen_beside):
        model, optimizer, attachment = attached(case, world)
        complete_late(attachment.engine)
        alone = make_model(case.model)
        beside = make_optimizer(case.optimizer, alone)
        for iteration in range(3):
            train(rank, model, [optimizer], [iteration])
            beside.zero_grad()
            sum(loss_of(alone, iteration, each) / world for each in range(world)).backward()  # type: ignore[union-attr]
            beside.step()
            if iteration == 1:
                for one in (model, alone):
                    assert isinstance(one, nn.Sequential)
                    torch.manual_seed(5)
                    change(one)
        attachment.detach()
        found[change.__name__] = worst_difference(model, alone)
    return found


@pytest.mark.parametrize("plan", PLANS)
def test_the_same_parameters_in_other_modules_train_on(pair: Ranks, plan: str) -> None:
    for found in pair.run(harmless, PLANS[plan]):
        assert max(found.values()) < 3e-6, found
