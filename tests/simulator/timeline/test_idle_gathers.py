"""All-gathers that leave while the wire is idle, in plans and in the timeline."""

import numpy as np
import pytest
from hypothesis import given

from autosync.codes import Channel
from autosync.domain import Domain
from autosync.plan import PlanTable, compile_plans
from autosync.population import Population, encode
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import play_one
from autosync.strategy import ReduceScatter, Schedule
from tests.domains import chain_graph, domain_of
from tests.message_flights import Flight, crowded
from tests.search.drawn_domains import domains, seeds
from tests.simulator.worked_examples import cluster_of, period, strategy_of

DEAR = Schedule("priority", overlap_forward=True)
IDLE = Schedule("priority", overlap_forward=True, gather="when_idle")


def test_second_halves_fill_what_first_halves_leave_of_the_wire() -> None:
    """A ring takes as long as compute: DeAR's rule costs 1/3 / 2 of it (its equations 6 and 7)."""
    variables = 400
    graph = chain_graph(((2500,),) * variables)
    compute = 4e6 * 1.5 / 1e8
    domain = domain_of(graph, cluster_of(backend="nccl"), compute / 3 / variables)
    dear, idle = (period(domain, strategy_of(domain, ReduceScatter, s))[0] for s in (DEAR, IDLE))
    assert dear / compute == pytest.approx(7 / 6, rel=0.01)
    assert idle / compute == pytest.approx(1.0, rel=0.03)


def test_first_halves_go_first_and_the_rest_by_its_next_use() -> None:
    graph = chain_graph(((250_000,),) * 4)
    domain = domain_of(graph, cluster_of(), 5e-3)
    plans = compile_plans(encode([strategy_of(domain, ReduceScatter, IDLE)], domain), domain)
    # Ready every 10 ms, a half takes 7.5: variable 3 is gathered while 2 is still computed; then
    # first halves are ready one after another until backward is over.
    assert [(int(plans.gate[m]), int(plans.channel[m])) for m in range(8)] == [
        (3, Channel.GRADIENT),
        (3, Channel.GATHER),
        (2, Channel.GRADIENT),
        (1, Channel.GRADIENT),
        (0, Channel.GRADIENT),
        (0, Channel.GATHER),
        (1, Channel.GATHER),
        (2, Channel.GATHER),
    ]


def test_new_values_do_not_hold_up_sums() -> None:
    graph = chain_graph(((250_000,),) * 4)
    domain = domain_of(graph, cluster_of(), 5e-3)
    strategy = strategy_of(domain, lambda v: ReduceScatter(v, sharded_update=v == 3), IDLE)
    plans = compile_plans(encode([strategy], domain), domain)
    gathered = [int(plans.gate[m]) for m in range(8) if plans.channel[m] == Channel.GATHER]
    # Variable 3, reduced first, waits for step(); 2 need not.
    assert gathered[0] == 2
    assert set(gathered[1:]) == {0, 1, 3}


def flights(plans: PlanTable, population: Population, domain: Domain, index: int) -> list[Flight]:
    played = play_one(plans, population, domain, index)
    first = int(plans.first[index])
    return [
        Flight(
            message,
            plans.channel[first + message] == Channel.GATHER,
            bool(plans.carries_values[first + message]),
            float(played.issued[message]),
            float(played.arrived[message]),
        )
        for message in range(len(played.arrived))
    ]


@given(domains(), seeds)
def test_the_timeline_keeps_them_back_until_the_wire_is_idle(domain: Domain, seed: int) -> None:
    population = sample(domain, Space(idle_gathers=True, whole_below_bytes=1000), 0, 16, seed)
    plans = compile_plans_fast(population, domain)
    for index in np.flatnonzero(population.idle_gather):
        assert crowded(flights(plans, population, domain, int(index)), 1e-12) == ""


@given(domains(), seeds)
def test_rows_follow_what_they_wait_for(domain: Domain, seed: int) -> None:
    """Issued in the order of their rows, messages cannot wait for each other."""
    population = sample(domain, Space(idle_gathers=True, whole_below_bytes=1000), 0, 16, seed)
    plans = compile_plans(population, domain)
    for name in ("operation", "channel", "gate", "after", "bucket"):
        fast = getattr(compile_plans_fast(population, domain), name)
        np.testing.assert_array_equal(getattr(plans, name), fast, err_msg=name)
    rows = np.arange(plans.messages) - np.repeat(plans.first[:-1], np.diff(plans.first))
    assert (plans.after < rows).all()
