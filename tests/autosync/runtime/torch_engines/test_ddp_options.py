"""Options of torch's DDP: passed on where DDP is used, refused where they contradict the plan."""

import os
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import autosync
from autosync.bundle import Bundle
from autosync.errors import AutosyncError, InvalidInput, NotSupported
from tests.autosync.runtime.cases import Case, make_optimizer, worst_difference
from tests.autosync.runtime.distributing import DDP, bundle_of
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.transport.test_agreement import CASES
from tests.autosync.runtime.updates.test_unused import USES, Branches, alone, inputs

FIND = {"find_unused_parameters": True}


def shipped(case: Case, world: int) -> Bundle:
    return bundle_of(case, Branches(), world)


def with_branches(
    rank: int, world: int, given: Bundle, options: dict[str, Any]
) -> tuple[str, float]:
    """Trains with parameters that some or all passes leave out, beside torch by itself."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    case = Case()
    model = Branches()
    optimizer = make_optimizer(case.optimizer, model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the bundle does not fit")
        network, _ = autosync.distribute(model, optimizer, given, ddp_options=options)
    for iteration, taken in enumerate(USES):
        optimizer.zero_grad()
        network(inputs(iteration, rank), taken[rank]).backward()
        optimizer.step()
    model.state_dict()
    passes = [[(inputs(i, r), taken[r]) for r in range(2)] for i, taken in enumerate(USES)]
    return type(network).__name__, worst_difference(model, alone(case, passes))


@pytest.mark.parametrize("method", [name for name in CASES if name != "ddp"])
def test_the_fallback_takes_the_unused_parameters_that_its_plan_takes(
    pair: Ranks, method: str
) -> None:
    for world, kind in ((2, "Branches"), (4, "DistributedDataParallel")):
        for found, difference in pair.run(with_branches, shipped(CASES[method], world), {}):
            assert found == kind
            assert difference < 2e-6


def test_options_reach_a_ddp_bundle_and_its_fallback(pair: Ranks) -> None:
    for world in (2, 4):
        for kind, difference in pair.run(with_branches, shipped(DDP, world), FIND):
            assert kind == "DistributedDataParallel"
            assert difference < 2e-6


def options_of(rank: int, world: int, each: list[tuple[Bundle, dict[str, Any]]]) -> list[Any]:
    found: list[Any] = []
    for given, options in each:
        model = nn.Sequential(Branches().first)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            network, _ = autosync.distribute(model, optimizer, given, ddp_options=options)
        names = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view")
        found.append(tuple(getattr(network, name) for name in names))
    return found


def test_options_of_the_script_override_those_of_the_fallback(pair: Ranks) -> None:
    gone, ddp = shipped(Case(), 4), shipped(DDP, 4)
    each = [
        (gone, {}),
        (gone, {"find_unused_parameters": False, "gradient_as_bucket_view": True}),
        (gone, {"static_graph": True}),
        (ddp, {}),
        (ddp, {"gradient_as_bucket_view": True}),
    ]
    expected = [
        (True, False, False),
        (False, False, True),
        (False, True, False),
        (False, False, False),
        (False, False, True),
    ]
    assert pair.run(options_of, each) == [expected] * 2


def refusal(rank: int, world: int, given: Bundle, options: dict[str, Any]) -> tuple[str, str]:
    model = Branches()
    with pytest.raises(AutosyncError) as caught:
        autosync.distribute(model, make_optimizer("sgd", model), given, ddp_options=options)
    return type(caught.value).__name__, str(caught.value)


@pytest.mark.parametrize("method", CASES)
def test_options_that_contradict_the_plan_are_refused(pair: Ranks, method: str) -> None:
    given = shipped(CASES[method], 2)
    for kind, words in pair.run(refusal, given, {"bucket_cap_mb": 50}):
        assert kind == NotSupported.__name__
        assert "bucket_cap_mb=50 contradicts the plan" in words
    if method == "ddp":
        return
    for kind, words in pair.run(refusal, given, {"forward_sync_buffers": False}):
        assert kind == NotSupported.__name__
        assert "rank 0's buffers" in words


def test_an_option_that_torch_does_not_know_is_refused(pair: Ranks) -> None:
    for kind, words in pair.run(refusal, shipped(DDP, 2), {"find_unused": True}):
        assert kind == InvalidInput.__name__
        assert "no option 'find_unused'" in words
        assert "find_unused_parameters" in words
