"""The optimizer's state: what is under way ends before it is read, saved or loaded, and a rank that
asks for it alone is named while it waits."""

import copy
import time
import warnings
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from autosync.runtime.attachment import Attachment, attach
from autosync.runtime.transport import agreement
from autosync.runtime.transport.base import SynchronizationFailed
from tests.autosync.runtime.cases import (
    Case,
    attached,
    gap,
    iterate,
    loss_of,
    make_model,
    make_optimizer,
    plan,
    set_reference_gradients,
    train_reference,
    weights,
    worst_difference,
)
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.training import OVERLAP, each_case


def evaluated(rank: int, world: int, case: Case) -> float:
    """Evaluation and state_dict right behind step() see the values of that step."""
    worst = 0.0
    model, optimizer, attachment = attached(case, world)
    for iteration in range(case.iterations):
        iterate(model, optimizer, rank, [iteration])
        with torch.no_grad():
            loss = loss_of(model.eval(), 99, 0)
        model.train()
        reference = train_reference(replace(case, iterations=iteration + 1), world)
        with torch.no_grad():
            worst = max(worst, gap(loss, loss_of(reference.eval(), 99, 0)))
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
    first = 2
    model, optimizer, attachment = attached(case, world)
    iterate(model, optimizer, rank, range(first))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    attachment.detach()
    worst = 0.0
    for method in ("zero", "all_reduce"):
        other = replace(case, method=method, partition="whole")
        model, optimizer, attachment = attached(other, world)
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(copy.deepcopy(saved[1]))  # torch keeps the tensors it is given
        iterate(model, optimizer, rank, range(first, case.iterations))
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
        set_reference_gradients(model, iteration, shares)
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
        iterate(model, optimizer, rank, [iteration])
        attachment.detach()
    return worst_difference(model, train_reference(case, world))


def test_plan_after_plan_on_one_model(pair: Ranks) -> None:
    cases = (Case(optimizer="adamw"), Case(partition="even", schedule=OVERLAP))
    each_case(pair, warm, *(replace(case, iterations=4) for case in cases))


SPLIT = (
    Case(method="zero", schedule=OVERLAP),
    Case(method="ps"),
    Case(method="mixed", groups=4, schedule=OVERLAP),
)
WHOLE = (Case(), Case(method="rs", schedule=OVERLAP))


SHORT = patch.object(agreement, "CALL_SECONDS", 0.01)


def trained(case: Case, rank: int, world: int, timeout_seconds: float = 60.0) -> Attachment:
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))
    assert isinstance(group, dist.ProcessGroup)
    model = make_model(case.model)
    names = tuple(name for name, _ in model.named_parameters())
    optimizer = make_optimizer(case.optimizer, model)
    made = attach(model, optimizer, plan(case, model, world), names, group)
    loss_of(model, 0, rank).backward()
    optimizer.step()
    return made


def late(rank: int, world: int, cases: tuple[Case, ...]) -> list[str]:
    """Rank 1 calls it only when rank 0 has said that it waits."""
    store = dist.distributed_c10d._get_default_store()
    found = []
    for number, case in enumerate(cases):
        made = trained(case, rank, world)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if rank == 1:
                store.wait([f"said/{number}"])
                state = made.optimizers[0].state_dict()
            else:
                state = said(made, store, f"said/{number}")
        assert len(state["state"]) == 5
        found += [str(warning.message) for warning in caught]
        made.detach(keep_state=False)
    return found


def said(made: Attachment, store: Store, key: str) -> dict[str, object]:
    show = warnings.showwarning

    def tell(*arguments: object, **named: object) -> None:
        store.set(key, "")
        show(*arguments, **named)  # type: ignore[arg-type]

    warnings.showwarning = tell
    try:
        with SHORT:
            return made.optimizers[0].state_dict()
    finally:
        warnings.showwarning = show


def test_a_rank_that_waits_says_for_whom(pair: Ranks) -> None:
    here, there = pair.run(late, SPLIT)
    assert len(here) == len(SPLIT)
    for words in here:
        assert "rank 0 waits in optimizer.state_dict(), which rank 1 has not called" in words
        assert "call it on every rank" in words
    assert there == []


def alone(rank: int, world: int, case: Case) -> str:
    """Rank 1 never calls it."""
    made = trained(case, rank, world, 8.0)
    store = dist.distributed_c10d._get_default_store()
    key = f"given up/{case.method}"
    if rank == 1:
        store.wait([key])
        made.detach(keep_state=False)
        return ""
    with SHORT, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(SynchronizationFailed) as caught:
            made.optimizers[0].state_dict()
    store.set(key, "")
    made.detach()
    return str(caught.value)


def test_a_rank_that_does_not_gather_is_named_at_the_timeout(pair: Ranks) -> None:
    words, _ = pair.run(alone, SPLIT[0])
    assert "optimizer.state_dict(), which rank 1 has not called" in words


def on_one(rank: int, world: int, cases: tuple[Case, ...]) -> int:
    """Where every rank holds everything, one may save alone."""
    saved = 0
    for case in cases:
        made = trained(case, rank, world)
        if rank == 0:
            saved += len(made.optimizers[0].state_dict()["state"])
        dist.barrier()
        made.detach()
    return saved


def test_one_rank_may_save_what_it_holds(pair: Ranks) -> None:
    assert pair.run(on_one, WHOLE) == [10, 0]


def without_state(rank: int, world: int) -> list[list[float]]:
    """Adagrad, which makes its state when it is made, under plan after plan of trials: these keep
    no state that ranks held in parts."""
    model = make_model("mlp")
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1, initial_accumulator_value=0.5)
    names = tuple(name for name, _ in model.named_parameters())
    for method in ("zero", "all_reduce", "ps"):
        made = attach(model, optimizer, plan(Case(method=method), model, world), names)
        iterate(model, optimizer, rank, range(2))
        made.detach(keep_state=False)
    sums = [float(optimizer.state[p]["sum"].min()) for p in model.parameters()]
    return [weights(model).tolist(), sums]


def test_an_optimizer_without_its_first_state_gets_one(pair: Ranks) -> None:
    (first, sums), (second, others) = pair.run(without_state)
    assert first == second
    assert sums == others == [0.5] * len(sums)
