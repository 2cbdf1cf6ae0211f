"""Gradients that are applied s iterations later: which, how late at most, and that none is lost."""

import copy
import os
from collections import deque
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn

import autosync
from autosync.errors import AutosyncError
from tests.autosync.extensions.staleness.lagging import distributed, iterate, lagging
from tests.autosync.runtime.cases import (
    Case,
    loss_of,
    make_model,
    make_optimizer,
    reference_gradients,
    worst_difference,
)
from tests.autosync.runtime.ranks import Ranks, ranks

ITERATIONS = 7
CASES = (
    Case(optimizer="adamw"),
    Case(partition="uneven", groups=3),
    Case(partition="pieces", groups=4),
    Case(model="cnn"),
    Case(model="branching", optimizer="adamw"),
)


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    with ranks(3) as made:
        yield made


def late_reference(case: Case, world: int, staleness: int, drained: bool) -> nn.Module:
    """One process: gradients of the weights of iteration t, applied at that of t + s. Where no
    replica has a gradient it counts as zero."""
    model = make_model(case.model)
    optimizer = make_optimizer(case.optimizer, model)
    trained = [p for p in model.parameters() if p.requires_grad]
    waiting: deque[list[torch.Tensor]] = deque()

    def apply() -> None:
        for parameter, gradient in zip(trained, waiting.popleft(), strict=True):
            parameter.grad = gradient
        optimizer.step()

    for iteration in range(ITERATIONS):
        gradients = reference_gradients(model, iteration, (1 / world,) * world)
        pairs = zip(gradients, trained, strict=True)
        waiting.append([torch.zeros_like(p) if g is None else g for g, p in pairs])
        if len(waiting) > staleness:
            apply()
    while drained and waiting:
        apply()
    return model


def train(rank: int, world: int, staleness: int) -> list[tuple[float, float, list[float]]]:
    """Differences before what is left is applied, and after; and the weights."""
    found = []
    for case in CASES:
        model, optimizer = distributed(rank, world, case, staleness)
        iterate(rank, model, optimizer, range(ITERATIONS))
        before = worst_difference(model, late_reference(case, world, staleness, drained=False))
        plain, same = autosync.detach(model)
        assert plain is model
        assert same is optimizer
        after = worst_difference(model, late_reference(case, world, staleness, drained=True))
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        found.append((before, after, weights.tolist()))
    return found


@pytest.mark.parametrize("staleness", [1, 3, 16])
def test_a_gradient_is_applied_s_iterations_later_and_none_is_lost(
    pair: Ranks, staleness: int
) -> None:
    for first, second in zip(*pair.run(train, staleness), strict=True):
        assert max(first[0], second[0], first[1], second[1]) < 3e-6
        assert first[2] == second[2]


def halved(p: torch.Tensor) -> None:
    assert p.grad is not None
    p.grad = p.grad * 0.5


def hooked(rank: int, world: int, staleness: int) -> float:
    """Hooks behind the plan halve gradients, beside a loss of half the size."""
    models = []
    for by_hooks in (True, False):
        model, optimizer = distributed(rank, world, Case(optimizer="plain"), staleness)
        if by_hooks:
            for p in model.parameters():
                p.register_post_accumulate_grad_hook(halved)
        for iteration in range(ITERATIONS):
            optimizer.zero_grad()
            (loss_of(model, iteration, rank) * (1.0 if by_hooks else 0.5)).backward()
            optimizer.step()
        models.append(autosync.detach(model)[0])
    return worst_difference(*models)


def test_hooks_behind_the_plan_run_before_gradients_leave(pair: Ranks) -> None:
    assert max(pair.run(hooked, 2)) < 3e-6


def test_three_ranks(three: Ranks) -> None:
    for answers in zip(*three.run(train, 2), strict=True):
        assert max(value for one in answers for value in one[:2]) < 3e-6


def delayed(rank: int, world: int, staleness: int) -> bool:
    """Rank 1 begins once rank 0 has taken the s steps that it may. Whether rank 0 then waits."""
    store = dist.distributed_c10d._get_default_store()
    model, optimizer = distributed(rank, world, Case(), staleness)
    waited = True
    for iteration in range(staleness + 2):
        key = f"delayed/{staleness}/{iteration}"
        if rank == 1 and iteration == 0:
            store.wait([f"delayed/{staleness}/{staleness - 1}"], timedelta(seconds=60))
            try:
                store.wait([f"delayed/{staleness}/{staleness}"], timedelta(seconds=1))
                waited = False
            except dist.DistStoreError:
                pass
        iterate(rank, model, optimizer, range(iteration, iteration + 1))
        if rank == 0:
            store.set(key, "stepped")
    autosync.detach(model)
    return waited


@pytest.mark.parametrize("staleness", [1, 4])
def test_a_rank_is_s_iterations_ahead_at_most(pair: Ranks, staleness: int) -> None:
    """And may be: otherwise the ranks would wait for each other for ever."""
    assert pair.run(delayed, staleness) == [True, True]


def resumed(rank: int, world: int, staleness: int, half: int) -> tuple[float, int]:
    case = Case(optimizer="adamw", partition="uneven")
    straight, first = distributed(rank, world, case, staleness)
    iterate(rank, straight, first, range(ITERATIONS))
    begun, second = distributed(rank, world, case, staleness)
    iterate(rank, begun, second, range(half))
    saved = copy.deepcopy((begun.state_dict(), second.state_dict()))
    again = make_model(case.model)
    again.load_state_dict(saved[0])
    again, third = distributed(rank, world, case, staleness, again)
    third.load_state_dict(saved[1])
    iterate(rank, again, third, range(half, ITERATIONS))
    for model in (straight, begun, again):
        autosync.detach(model)
    return worst_difference(straight, again), len(saved[1]["stale_gradients"])


@pytest.mark.parametrize("half", [1, 2, 5])
def test_state_is_saved_and_resumed(pair: Ranks, half: int) -> None:
    for difference, kept in pair.run(resumed, 2, half):
        assert difference == 0.0
        assert kept == min(2, half)


def clipped(rank: int, world: int) -> float:
    """By the script, between backward and step: what is clipped is what is applied."""
    case, staleness, norm = Case(optimizer="plain"), 1, 0.01
    model, optimizer = distributed(rank, world, case, staleness)
    alone = make_model(case.model)
    single = make_optimizer(case.optimizer, alone)
    waiting = None
    for iteration in range(4):
        optimizer.zero_grad()
        loss_of(model, iteration, rank).backward()
        assert all((p.grad is None) == (iteration == 0) for p in model.parameters())
        nn.utils.clip_grad_norm_(model.parameters(), norm)
        optimizer.step()
        gradients = reference_gradients(alone, iteration, (1 / world,) * world)
        if waiting is not None:
            for p, gradient in zip(alone.parameters(), waiting, strict=True):
                p.grad = gradient
            nn.utils.clip_grad_norm_(alone.parameters(), norm)
            single.step()
        waiting = gradients
    difference = worst_difference(model, alone)
    autosync.detach(model)
    return difference


def test_the_script_sees_the_gradient_that_is_applied(pair: Ranks) -> None:
    assert max(pair.run(clipped)) < 2e-6


def accumulated(rank: int, world: int) -> float:
    model, optimizer = distributed(rank, world, Case(optimizer="plain"), 1)
    alone = make_model("mlp")
    single = make_optimizer("plain", alone)
    waiting: list[torch.Tensor] = []
    for iteration in range(3):
        optimizer.zero_grad()
        with model.no_sync():  # type: ignore[operator]
            loss_of(model, iteration, rank).backward()
        loss_of(model, iteration + 50, rank).backward()
        optimizer.step()
        sums = []
        for p, *parts in zip(
            alone.parameters(),
            *(reference_gradients(alone, i, (0.5, 0.5)) for i in (iteration, iteration + 50)),
            strict=True,
        ):
            sums.append(sum((g for g in parts if g is not None), torch.zeros_like(p)))
        if waiting:
            for p, gradient in zip(alone.parameters(), waiting, strict=True):
                p.grad = gradient
            single.step()
        waiting = sums
    difference = worst_difference(model, alone)
    autosync.detach(model)
    return difference


def test_gradients_add_up_under_no_sync(pair: Ranks) -> None:
    assert max(pair.run(accumulated)) < 2e-6


def refused(rank: int, world: int) -> dict[str, str]:
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    found = {}

    def words(name: str, case: Case, allowed: bool = True, scaled: bool = False) -> None:
        model = make_model(case.model)
        optimizer = make_optimizer(case.optimizer, model)
        bundle = lagging(case, world, 2)
        try:
            autosync.distribute(model, optimizer, bundle, allow_inexact=allowed)
            scaler = torch.amp.GradScaler("cpu", enabled=scaled)
            for iteration in range(4):
                scaler.scale(loss_of(model, iteration, rank)).backward()
                if name != "twice":
                    scaler.step(optimizer)
                    scaler.update()
        except AutosyncError as error:
            found[name] = str(error)
        if name in ("twice", "scaled"):
            autosync.detach(model)

    words("not asked", Case(), allowed=False)
    words("halves", Case(method="rs"))
    words("scaled", Case(), scaled=True)
    words("twice", Case())
    return found


def test_what_a_late_gradient_does_not_allow_is_refused(pair: Ranks) -> None:
    for found in pair.run(refused):
        assert "allow_inexact=True" in found["not asked"]
        assert "travels otherwise than by a plain all-reduce" in found["halves"]
        assert "GradScaler" in found["scaled"]
        assert "two backward passes" in found["twice"]
