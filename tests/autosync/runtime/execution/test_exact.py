"""Every synchronizer equals single-process training on the weighted average of gradients."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.runtime.layout.records import issue_order
from autosync.strategy import Schedule
from tests.autosync.runtime.cases import (
    Case,
    attached,
    iterate,
    train_reference,
    weights,
    worst_difference,
)
from tests.autosync.runtime.place import HERE
from tests.autosync.runtime.ranks import Ranks, ranks
from tests.autosync.runtime.traces import crowding, disorder
from tests.autosync.runtime.training import OVERLAP
from tests.long_parameters import long_after


@pytest.fixture(scope="module", params=long_after(1, [3, 2, 4]))
def pool(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with ranks(request.param) as made:
        yield made


IDLE = replace(OVERLAP, gather="when_idle")
METHODS = ("all_reduce", "ring", "tree", "ps", "byteps", "rs", "zero", "mixed")
HALVED = ("byteps", "rs", "zero", "mixed")
PARTITIONS = ("whole", "even", "uneven", "pieces")


def train(rank: int, world: int, case: Case) -> tuple[float, list[float]]:
    trace = ExecutionTrace()
    model, optimizer, attachment = attached(case, world, trace)
    iterate(model, optimizer, rank, range(case.iterations))
    attachment.detach()
    engine = attachment.engine
    queues = [record.queue for record in engine.messages]
    assert disorder(trace, issue_order(engine.plan), queues, case.iterations) == ""
    if HERE.streams is None and HERE.device.type == "cpu":  # else threads issue what may leave
        assert crowding(trace, engine.plan, case.iterations) == ""
    return worst_difference(model, train_reference(case, world)), weights(model).tolist()


def train_all(rank: int, world: int, cases: list[Case]) -> list[tuple[float, list[float]]]:
    return [train(rank, world, case) for case in cases]


def check_exact(pool: Ranks, cases: list[Case]) -> None:
    """All cases in one call, so that the ranks are woken once."""
    for case, results in zip(cases, zip(*pool.run(train_all, cases), strict=True), strict=True):
        assert max(difference for difference, _ in results) < 2e-6, case
        assert all(found == results[0][1] for _, found in results), case


@pytest.mark.parametrize("all_pairs", long_after(1, [False, True]))
@pytest.mark.parametrize("method", METHODS)
def test_equals_single_process(pool: Ranks, method: str, all_pairs: bool) -> None:
    """In `make test` each partition and optimizer meet one of the schedules, taken in turn."""
    schedules = (Schedule(), OVERLAP, *([IDLE] if method in HALVED else []))
    cases = [
        Case(optimizer=optimizer, method=method, partition=partition, schedule=schedule, groups=3)
        for number, partition in enumerate(PARTITIONS)
        for turn, optimizer in enumerate(("sgd", "adamw"), number)
        for schedule in (schedules if all_pairs else [schedules[turn % len(schedules)]])
    ]
    check_exact(pool, cases)
