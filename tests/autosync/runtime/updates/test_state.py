"""What is under way ends before anything is evaluated, saved, loaded or taken over."""

import copy
import time
from dataclasses import replace
from typing import Any

import torch

from tests.autosync.runtime.cases import (
    Case,
    attached,
    loss_of,
    make_model,
    make_optimizer,
    reference_gradients,
    train_reference,
    worst_difference,
)
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.training import OVERLAP, each_case


def evaluated(rank: int, world: int, case: Case) -> float:
    """Evaluation and state_dict right behind step() see the values of that step."""
    worst = 0.0
    model, optimizer, attachment = attached(case, world)
    for iteration in range(case.iterations):
        optimizer.zero_grad()
        loss_of(model, iteration, rank).backward()
        optimizer.step()
        with torch.no_grad():
            loss = float(loss_of(model.eval(), 99, 0))
        model.train()
        reference = train_reference(replace(case, iterations=iteration + 1), world)
        with torch.no_grad():
            worst = max(worst, abs(loss - float(loss_of(reference.eval(), 99, 0))))
        other = make_model(case.model)
        other.load_state_dict(model.state_dict())
        worst = max(worst, worst_difference(other, reference))
    attachment.detach()
    return worst


def test_evaluation_in_the_middle(pair: Ranks) -> None:
    each_case(pair, evaluated)


def saved_at_once(rank: int, world: int, case: Case) -> float:
    """state_dict and load_state_dict right behind a step() whose values a slow rank still owes."""
    model, optimizer, attachment = attached(case, world)
    start = copy.deepcopy(model.state_dict())
    worst = 0.0
    for iteration in range(case.iterations):
        optimizer.zero_grad()
        loss_of(model, iteration, rank).backward()
        if rank == 1:
            time.sleep(0.05)
        optimizer.step()
        other = make_model(case.model)
        other.load_state_dict(copy.deepcopy(model.state_dict()))
        reference = train_reference(replace(case, iterations=iteration + 1), world)
        worst = max(worst, worst_difference(other, reference))
    loss_of(model, 99, rank).backward()
    if rank == 1:
        time.sleep(0.05)
    optimizer.step()
    model.load_state_dict(start)
    attachment.detach()
    return max(worst, worst_difference(model, make_model(case.model)))


def test_saving_and_loading_behind_step(pair: Ranks) -> None:
    each_case(pair, saved_at_once)


def resumed(rank: int, world: int, case: Case) -> float:
    """A checkpoint goes into another strategy, and into no strategy at all."""
    first, second = 2, case.iterations - 2
    model, optimizer, attachment = attached(case, world)
    for iteration in range(first):
        optimizer.zero_grad()
        loss_of(model, iteration, rank).backward()
        optimizer.step()
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    attachment.detach()
    worst = 0.0
    for method in ("zero", "all_reduce"):
        other = replace(case, method=method, partition="whole")
        model, optimizer, attachment = attached(other, world)
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(copy.deepcopy(saved[1]))  # torch keeps the tensors it is given
        for iteration in range(first, first + second):
            optimizer.zero_grad()
            loss_of(model, iteration, rank).backward()
            optimizer.step()
        attachment.detach()
        worst = max(worst, worst_difference(model, train_reference(case, world)))
    return max(worst, _goes_on_alone(case, world, saved))


def _goes_on_alone(case: Case, world: int, saved: tuple[dict[str, Any], dict[str, Any]]) -> float:
    model = make_model(case.model)
    optimizer = make_optimizer(case.optimizer, model)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(copy.deepcopy(saved[1]))
    shares = (1.0 / world,) * world
    for iteration in range(2, case.iterations):
        gradients = reference_gradients(model, iteration, shares)
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            p.grad = gradient
        optimizer.step()
    return worst_difference(model, train_reference(case, world))


def test_checkpoint_into_another_strategy(pair: Ranks) -> None:
    each_case(pair, resumed)


def warm(rank: int, world: int, case: Case) -> float:
    """One model goes through every strategy, an iteration each, its state carried along."""
    model = make_model(case.model)
    optimizer = make_optimizer(case.optimizer, model)
    for iteration, method in enumerate(("all_reduce", "zero", "ps", "mixed")):
        _, _, attachment = attached(
            replace(case, method=method), world, model=model, optimizer=optimizer
        )
        optimizer.zero_grad()
        loss_of(model, iteration, rank).backward()
        optimizer.step()
        attachment.detach()
    return worst_difference(model, train_reference(case, world))


def test_plan_after_plan_on_one_model(pair: Ranks) -> None:
    each_case(pair, warm, Case(optimizer="adamw"), Case(partition="even", schedule=OVERLAP))
