"""Swapping under plans on two ranks: the same weights to the bit, within the budget."""

import os
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn

import autosync
from autosync.bundle import Bundle, make_bundle, save_bundle
from autosync.errors import NotSupported
from autosync.extensions.offload.arena import Arena
from autosync.extensions.offload.attachment import HostSwapper
from autosync.extensions.offload.document import Offload
from autosync.extensions.offload.schedule import least_budget_bytes
from autosync.runtime.attached_models import ATTACHED
from autosync.runtime.attachment import attachment_of
from autosync.strategy import Schedule
from autosync.trials import session
from tests.autosync.extensions.offload.swapped_training import (
    ROOMY,
    batch_of,
    make,
    moved_kinds,
    train_step,
)
from tests.autosync.runtime.cases import domain, strategy
from tests.autosync.runtime.distributing import DDP, PLANS, refusal
from tests.autosync.runtime.ranks import Ranks

BATCH = 512
"""Activations of 64 and 256 KiB, which bundles swap."""
SLICED = Schedule("priority", slice_bytes=4000, overlap_forward=True)
CASES = PLANS | {
    "reduce-scatter": replace(PLANS["reduce-scatter"], schedule=SLICED),
    "sharded": replace(PLANS["sharded"], schedule=SLICED),
    "ddp": DDP,
}
"""In slices that suit models of more weights than those of other tests."""


def bundle_of(
    case: str, model: nn.Module, world: int, budget_bytes: int | None, with_state: bool = False
) -> Bundle:
    where = domain(model, world, CASES[case].ranks_per_node)
    plain = strategy(CASES[case], where.graph, world)
    if budget_bytes is None:
        return make_bundle(plain, where)
    swapped = plain.carrying(Offload(budget_bytes, with_state))
    return make_bundle(swapped, where)


def train(
    rank: int,
    world: int,
    case: str,
    budget_bytes: int | None,
    arena_bytes: int,
    with_state: bool = False,
) -> tuple[list[Tensor], int, int, bool]:
    """Values afterwards, the peak of the last step, the least budget, and whether a pass was
    scheduled with something moved. (Where gloo's threads free a buffer late, a pass begins with
    more than the recorded one, and is recorded anew.)"""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model, optimizer = make("wide" if with_state else "blocks")
    bundle = bundle_of(case, model, world, budget_bytes, with_state)
    with Arena(arena_bytes) as arena:
        network, optimizer = autosync.distribute(model, optimizer, bundle)
        assert is_swapping(model) is (budget_bytes is not None)
        torch.manual_seed(rank)
        swapper, followed = swapper_of(model), False
        for step in range(6):
            arena.take_peak_bytes()
            train_step(network, optimizer, batch_of(step, BATCH, rank))
            followed = followed or follows(swapper)
        peak = arena.take_peak_bytes()
    plain, _ = autosync.detach(network)  # gathers optimizer state, which is no part of a step
    assert not is_swapping(plain)
    values = [value.detach().clone() for value in plain.parameters()]
    if swapper is None or swapper.recorded is None or swapper.schedule is None:
        return values, peak, 0, False
    return values, peak, least_budget_bytes(swapper.recorded.moments), followed


def follows(swapper: HostSwapper | None) -> bool:
    """The last pass went by a schedule that moves something; of state, where swapped."""
    if swapper is None or swapper.schedule is None or swapper.recorded is None:
        return False
    if not swapper.is_following:
        return False
    moved = moved_kinds(swapper)
    if swapper.states.tensors:  # the next pass has begun
        return swapper.deviations == 0 and bool(moved - {"activation"})
    return bool(moved)


def is_swapping(model: nn.Module) -> bool:
    hooks = model._forward_hooks.values()
    return any(hook.__module__ == HostSwapper.__module__ for hook in hooks)


def swapper_of(model: nn.Module) -> HostSwapper | None:
    plan, ddp = attachment_of(model), ATTACHED.ddp_around(model)
    handles = [*(plan.handles if plan else ()), *(ATTACHED.wrapped[ddp].handles if ddp else ())]
    return next((handle for handle in handles if isinstance(handle, HostSwapper)), None)


@pytest.mark.parametrize(
    ("case", "with_state"),
    [*((case, False) for case in CASES), ("all-reduce", True), ("ddp", True)],
)
def test_a_synchronized_plan_trains_in_less_memory_to_the_bit(
    pair: Ranks, case: str, with_state: bool
) -> None:
    plain = pair.run(train, case, None, ROOMY, with_state)
    roomy = pair.run(train, case, ROOMY, ROOMY, with_state)
    least = max(found[2] for found in roomy)
    budget = (3 * least + max(found[1] for found in plain)) // 4
    assert least < budget
    swapped = pair.run(train, case, budget, budget, with_state)
    for (values, _, _, _), (others, peak, _, followed) in zip(plain, swapped, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(values, others, strict=True))
        assert peak <= budget
        assert followed


def state_refusal(rank: int, world: int, case: str) -> str:
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model, optimizer = make("wide")
    bundle = bundle_of(case, model, world, ROOMY, with_state=True)
    with Arena(ROOMY):
        return refusal(lambda: autosync.distribute(model, optimizer, bundle))


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("sharded", "continue during the next forward pass"),
        ("server", "its parameter server, which alone has its state"),
    ],
)
def test_plans_whose_updates_are_elsewhere_refuse_to_swap_state(
    pair: Ranks, case: str, why: str
) -> None:
    for words in pair.run(state_refusal, case):
        assert why in words
        assert "swaps optimizer state" in words


def refused(rank: int, world: int, compiled: str, folder: str) -> str:
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model, optimizer = make("blocks")
    path = Path(folder) / f"{rank}.json"
    save_bundle(bundle_of("all-reduce", model, world, ROOMY), path)
    given = model
    if compiled == "by torch.compile":
        given = cast(nn.Module, torch.compile(model, backend="eager"))
    elif compiled == "in place":
        model.compile(backend="eager")
    return refusal(lambda: autosync.distribute(given, optimizer, path))


def test_it_is_refused_where_nothing_can_be_swapped(pair: Ranks, tmp_path: Path) -> None:
    for words in pair.run(refused, "", str(tmp_path)):
        assert "the model is on cpu" in words
    for how in ("by torch.compile", "in place"):
        for words in pair.run(refused, how, str(tmp_path)):
            assert "the model is compiled" in words


def trial(
    rank: int, world: int, case: str, budget_bytes: int | None
) -> tuple[list[Tensor], list[bool]]:
    """Values after a trial's steps, and whether activations were swapped in it and after it."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model, optimizer = make("blocks")
    bundle = bundle_of(case, model, world, budget_bytes)
    groups = session.ReusedGroups()
    with Arena(ROOMY):
        attached = session.attach(model, optimizer, bundle, 1.0, groups)
        swapped = [is_swapping(model)]
        torch.manual_seed(rank)
        for step in range(4):
            train_step(attached.model, optimizer, batch_of(step, BATCH, rank))
        attached.flush()
        attached.detach()
    swapped.append(is_swapping(model))
    groups.close()
    return [value.detach().clone() for value in model.parameters()], swapped


@pytest.mark.parametrize("case", ["all-reduce", "ddp"])
def test_a_trial_swaps_and_leaves_the_model_as_it_was(pair: Ranks, case: str) -> None:
    plain, swapping = pair.run(trial, case, None), pair.run(trial, case, ROOMY)
    for (values, never), (others, swapped) in zip(plain, swapping, strict=True):
        assert all(map(torch.equal, values, others))
        assert never == [False, False]
        assert swapped == [True, False]


def test_a_trial_refuses_to_swap_from_host_memory() -> None:
    model, optimizer = make("blocks")
    bundle = bundle_of("all-reduce", model, 2, ROOMY)
    with pytest.raises(NotSupported, match="the model is on cpu"):
        session.attach(model, optimizer, bundle, 1.0, session.ReusedGroups())
