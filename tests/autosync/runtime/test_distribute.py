"""The entry point: what fits runs the plan, what does not falls back to DDP, what dies is named."""

import os
import subprocess
import sys
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import autosync
from autosync.bundle import Bundle, make_bundle
from autosync.codes import Update
from autosync.errors import InvalidInput, NotSupported
from autosync.runtime.attachment import attach
from autosync.strategy import Schedule
from tests.autosync.runtime.cases import (
    Case,
    attached,
    domain,
    loss_of,
    make_model,
    make_optimizer,
    plan,
    reference_gradients,
    strategy,
    train_reference,
    worst_difference,
)
from tests.autosync.runtime.distributing import refusal
from tests.autosync.runtime.ranks import Ranks


def shipped(case: Case, world: int) -> Bundle:
    where = domain(make_model(case.model), world, case.ranks_per_node)
    return make_bundle(strategy(case, where.graph, world), where)


def train(rank: int, world: int, case: Case, given: Bundle, host: str) -> tuple[str, list[str]]:
    os.environ["AUTOSYNC_HOST"] = host.format(rank=rank)
    model = make_model(case.model)
    optimizer = make_optimizer(case.optimizer, model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        network, optimizer = autosync.distribute(model, optimizer, given)
    for iteration in range(case.iterations):
        optimizer.zero_grad()
        loss_of(network, iteration, rank).backward()
        optimizer.step()
    if not isinstance(network, DistributedDataParallel):
        model.state_dict()
    assert worst_difference(model, train_reference(case, world)) < 2e-6
    return type(network).__name__, [str(warning.message) for warning in caught]


def test_a_fitting_bundle_runs_its_plan(pair: Ranks) -> None:
    case = Case(method="ps")
    for kind, caught in pair.run(train, case, shipped(case, 2), "host{rank}"):
        assert kind == "Sequential"
        assert caught == []


def test_ddp_is_a_strategy(pair: Ranks) -> None:
    case = Case(schedule=Schedule("ddp"), groups=1)
    for kind, caught in pair.run(train, case, shipped(case, 2), "host{rank}"):
        assert kind == "DistributedDataParallel"
        assert caught == []


def clipped(rank: int, world: int, case: Case, given: Bundle, host: str) -> list[float]:
    """By DDP, because the bundle says so or because it does not fit: like torch's own clipping."""
    os.environ["AUTOSYNC_HOST"] = host.format(rank=rank)
    found = []
    for scaled in (False, True):
        model = make_model(case.model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=scaled)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            network, _ = autosync.distribute(model, optimizer, given, max_grad_norm=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=scaled)
        alone = make_model(case.model)
        single = torch.optim.AdamW(alone.parameters(), lr=0.01)
        for iteration in range(case.iterations):
            optimizer.zero_grad()
            scaler.scale(loss_of(network, iteration, rank)).backward()
            scaler.step(optimizer)
            scaler.update()
            gradients = reference_gradients(alone, iteration, (1 / world,) * world)
            for p, gradient in zip(alone.parameters(), gradients, strict=True):
                p.grad = gradient
            torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.05)
            single.step()
        if not isinstance(network, DistributedDataParallel):
            model.state_dict()
        found.append(worst_difference(model, alone))
    return found


@pytest.mark.parametrize("method", ["all_reduce", "zero", "ddp"])
@pytest.mark.parametrize("host", ["host{rank}", "one"])
def test_clipping_does_not_depend_on_what_synchronizes(pair: Ranks, method: str, host: str) -> None:
    case = Case(method=method)
    if method == "ddp":
        case = Case(schedule=Schedule("ddp"), groups=1)
    for differences in pair.run(clipped, case, shipped(case, 2), host):
        assert max(differences) < 3e-6, differences


def test_a_bundle_of_another_model_falls_back_to_ddp(pair: Ranks) -> None:
    case = Case()
    fits = shipped(case, 2)
    other = replace(fits.variables[1], shape=(11,))
    frozen = replace(fits, variables=(*fits.variables, replace(other, name="gone.weight")))
    for given, host, words in (
        (shipped(case, 4), "host{rank}", "for 4 ranks, this job has 2"),
        (fits, "one", "ranks 0 and 1 share a host here, but not in the bundle"),
        (replace(fits, variables=(fits.variables[0], other)), "h{rank}", "has shape (10,)"),
        (frozen, "h{rank}", "'gone.weight' is missing"),
    ):
        for kind, caught in pair.run(train, case, given, host):
            assert kind == "DistributedDataParallel"
            assert len(caught) == 1
            assert words in caught[0]


class WithLoss(torch.nn.Module):
    """What is often imported: it computes the loss, and holds the model that is distributed."""

    def __init__(self, *models: torch.nn.Module) -> None:
        super().__init__()
        self.model = models[0]
        self.others = torch.nn.ModuleList(models[1:])


def test_a_bundle_of_a_wrapper_fits_the_model_inside(pair: Ranks) -> None:
    case = Case(method="zero")
    wrapped = domain(WithLoss(make_model(case.model)), 2)
    assert wrapped.graph.variables[0].name == "model.0.weight"
    given = make_bundle(strategy(case, wrapped.graph, 2), wrapped)
    for kind, caught in pair.run(train, case, given, "host{rank}"):
        assert kind == "Sequential"
        assert caught == []


def test_a_bundle_of_two_such_models_fits_neither(pair: Ranks) -> None:
    case = Case()
    both = domain(WithLoss(make_model(case.model), make_model(case.model)), 2)
    given = make_bundle(strategy(case, both.graph, 2), both)
    for kind, caught in pair.run(train, case, given, "host{rank}"):
        assert kind == "DistributedDataParallel"
        assert "'0.weight' could be 'model.0.weight' or 'others.0.0.weight'" in caught[0]


def differing(rank: int, world: int) -> str:
    model = make_model("mlp")
    optimizer = make_optimizer("sgd", model)
    names = tuple(name for name, _ in model.named_parameters())
    mine = plan(Case(groups=2 + rank), model, world)
    with pytest.raises(InvalidInput, match="unlike rank 0") as caught:
        attach(model, optimizer, mine, names)
    return str(caught.value)


def test_differing_plans_are_refused_on_every_rank(pair: Ranks) -> None:
    assert len(pair.run(differing)) == 2


class HomeMade(torch.optim.SGD):
    """Not known to be elementwise."""


def refused(rank: int, world: int) -> list[bool]:
    answers = []
    for method in ("all_reduce", "zero", "ps", "mixed"):
        model = make_model("mlp")
        optimizer = HomeMade(model.parameters(), lr=0.1)
        try:
            _, _, attachment = attached(
                Case(method=method), world, model=model, optimizer=optimizer
            )
            attachment.detach()
            answers.append(False)
        except NotSupported as error:
            answers.append("HomeMade" in str(error))
    return answers


def test_owned_and_sharded_updates_refuse_other_optimizers(pair: Ranks) -> None:
    assert pair.run(refused) == [[False, True, True, True]] * 2


def test_every_way_of_updating_is_covered() -> None:
    seen = {
        message.update
        for method in ("all_reduce", "zero", "ps")
        for message in plan(Case(method=method), make_model("mlp"), 2).messages
    }
    assert seen == set(Update)


def test_importing_autosync_does_not_import_torch() -> None:
    code = "import sys, autosync; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def ill_given(rank: int, world: int, given: Bundle) -> dict[str, str]:
    model = make_model("mlp")
    optimizer = make_optimizer("sgd", model)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)

    def said(optimizer: Any, max_grad_norm: float | None = None) -> str:
        return refusal(
            lambda: autosync.distribute(model, optimizer, given, max_grad_norm=max_grad_norm)
        )

    return {
        "parameters": said(model.parameters()),
        "scheduler": said(scheduler),
        "none": said([]),
        "negative": said(optimizer, -1.0),
        "not a number": said(optimizer, float("nan")),
    }


def test_wrong_types_of_optimizer_and_norm_are_named(pair: Ranks) -> None:
    for found in pair.run(ill_given, shipped(Case(), 2)):
        assert "optimizer is a Parameter" in found["parameters"]
        assert "optimizer is a ConstantLR" in found["scheduler"]
        assert "optimizer is an empty list" in found["none"]
        assert "max_grad_norm is -1.0" in found["negative"]
        assert "max_grad_norm is nan" in found["not a number"]
