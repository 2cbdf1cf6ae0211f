"""Where an iteration's time goes, on examples worked out by hand: a megabyte takes a ring of four
15 ms, a startup 1 ms, an operation 10 ms forward and 20 ms backward."""

from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from autosync.bundle import make_bundle
from autosync.domain import Domain
from autosync.population import encode
from autosync.simulator.limit import iteration_limit
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.iteration_trace import predicted_iteration
from autosync.strategy import AllReduce, ReduceScatter, Schedule, Strategy
from autosync.trials.contract import (
    ComputeTimes,
    MeasuredTimeline,
    MessageTimes,
    Phase,
    RankTimeline,
)
from benchmarks.contest.iteration_accounts import (
    IterationAccounts,
    accounts_table,
    complement,
    folded,
    iteration_accounts,
    length,
    median_accounts,
)
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of, strategy_of

GRAPH = chain_graph(((250_000,),) * 2)
DOMAIN = domain_of(GRAPH, cluster_of(backend="nccl", startup=1e-3), 1e-2)
OVERLAP = Schedule(overlap_forward=True)


def recorded(strategy: Strategy, domain: Domain, late_seconds: float = 0.0) -> MeasuredTimeline:
    """What a trial would record if the prediction were right, but that every message is handed to
    the backend so much later and takes as much less."""
    population = encode([strategy], domain)
    plans = compile_plans_fast(population, domain)
    trace = predicted_iteration(plans, population, domain)
    numbers = tuple(message.message for message in trace.messages)
    issued = tuple(message.issued_seconds + late_seconds for message in trace.messages)
    arrived = tuple(message.arrived_seconds for message in trace.messages)
    ranks = []
    for rank in range(domain.world_size):
        mine = [each for each in trace.compute if each.rank == rank]
        compute = ComputeTimes(
            tuple(cast(Phase, each.phase) for each in mine),
            tuple(each.start_seconds for each in mine),
            tuple(each.stop_seconds for each in mine),
        )
        ranks.append(RankTimeline(compute, MessageTimes(numbers, issued, issued, arrived)))
    return MeasuredTimeline(trace.step_seconds, "shared", tuple(ranks))


def accounts(strategy: Strategy, late_seconds: float = 0.0) -> IterationAccounts:
    timeline = recorded(strategy, DOMAIN, late_seconds)
    plan = make_bundle(strategy, DOMAIN).plan
    found = iteration_accounts(timeline, strategy, plan, DOMAIN, iteration_limit(DOMAIN))
    of_rank = (
        found.compute_seconds
        + found.slower_compute_seconds
        + found.update_seconds
        + found.wait_seconds
    )
    of_link = (
        found.line_rate_seconds
        + found.startup_seconds
        + found.held_seconds
        + found.merging_seconds
        + found.late_seconds
        + found.nothing_seconds
    )
    assert of_rank == pytest.approx(found.step_seconds)
    assert of_link == pytest.approx(found.step_seconds)
    return found


def test_two_messages_one_startup_each() -> None:
    """Sent from 56 to 72 ms of the iteration and from its end at 76 ms into the next, for 16."""
    found = accounts(strategy_of(DOMAIN, AllReduce, OVERLAP))
    assert found.step_seconds == pytest.approx(0.076)
    assert found.wait_seconds == pytest.approx(0.016)
    assert found.line_rate_seconds == pytest.approx(0.030)
    assert found.startup_seconds == pytest.approx(0.002)
    assert found.nothing_seconds == pytest.approx(0.044)
    assert found.held_seconds == found.merging_seconds == pytest.approx(0.0)
    assert found.late_seconds == pytest.approx(0.0)
    assert found.extra_seconds == pytest.approx(0.0, abs=1e-9)


def test_a_message_that_is_handed_over_late_is_late() -> None:
    found = accounts(strategy_of(DOMAIN, AllReduce, OVERLAP), late_seconds=3e-3)
    assert found.late_seconds == pytest.approx(0.006)
    assert found.nothing_seconds == pytest.approx(0.044)


def test_a_gradient_that_waits_for_another_of_its_message_is_told_apart() -> None:
    """The first of the two is there 20 ms before the other."""
    found = accounts(strategy_of(DOMAIN, lambda variable: AllReduce(0), OVERLAP))
    assert found.merging_seconds == pytest.approx(0.020)
    assert found.late_seconds == pytest.approx(0.0)


def test_second_halves_that_are_held_are_told_apart() -> None:
    """The first variable's halves arrive 7.5 ms before backward ends; without priority the second
    halves wait for the forward pass."""
    found = accounts(strategy_of(DOMAIN, ReduceScatter, OVERLAP), late_seconds=0.0)
    later = accounts(strategy_of(DOMAIN, ReduceScatter, OVERLAP), late_seconds=2e-3)
    assert later.held_seconds > found.held_seconds
    assert later.held_seconds - found.held_seconds <= 4e-3 + 1e-9


def test_torch_ddp_tells_no_messages() -> None:
    strategy = strategy_of(DOMAIN, AllReduce, OVERLAP)
    timeline = recorded(strategy, DOMAIN)
    silent = replace(timeline, ranks=tuple(replace(r, messages=None) for r in timeline.ranks))
    plan = make_bundle(strategy, DOMAIN).plan
    with pytest.raises(ValueError, match="DDP"):
        iteration_accounts(silent, strategy, plan, DOMAIN, iteration_limit(DOMAIN))


def test_intervals_fold_into_one_period() -> None:
    both = folded([(0.9, 1.3), (-0.2, 0.1), (2.5, 2.4), (0.15, 0.2)], 1.0)
    assert both == pytest.approx(np.array([[0.0, 0.3], [0.8, 1.0]]))
    rest = complement(both, 1.0)
    assert rest == pytest.approx(np.array([[0.3, 0.8]]))
    assert length(rest) == pytest.approx(0.5)
    assert length(complement(folded([(0.3, 5.0)], 1.0), 1.0)) == 0.0
    assert length(complement(folded([], 1.0), 1.0)) == 1.0


def test_the_table_has_a_line_a_domain() -> None:
    one = accounts(strategy_of(DOMAIN, AllReduce, OVERLAP))
    other = replace(one, step_seconds=0.08)
    assert median_accounts([one, other, one, replace(one, step_seconds=0.09), other]) is other
    lines = accounts_table({"one": one, "other": other}).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["one", "other"]
    assert len({line.count("|") for line in lines}) == 1
