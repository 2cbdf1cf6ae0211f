"""Costs of single messages: found again in what the timeline itself makes of such messages."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.cluster import Backend, Cluster, MessageCost, MessageKind
from autosync.population import encode
from autosync.simulator.cost.message_classes import COST_KIND
from autosync.simulator.fitting.message_costs import (
    fit_message_cost,
    link_seconds,
    with_message_costs,
)
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import play_one
from autosync.strategy import AllReduce, ParameterServer, ReduceScatter, Synchronizer
from autosync.trials.probes import MessageSample, MessageSamples
from autosync.trials.worker.timed_messages import PROBED_OPERATION
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.simulator.worked_examples import cluster_of, strategy_of

HOLDING: dict[MessageKind, Synchronizer] = {
    "all_reduce": AllReduce(0),
    "reduce": AllReduce(0, "tree"),
    "broadcast": AllReduce(0, "tree"),
    "all_to_all": ReduceScatter(0),
    "all_gather": ReduceScatter(0),
    "send_recv": ParameterServer(0, 0),
}
"""A synchronizer of one variable whose plan holds one message of the kind."""


def played_sample(cluster: Cluster, kind: MessageKind, elements: int) -> MessageSample:
    """One message of the kind among all ranks, as long as the timeline says."""
    domain = domain_of(chain_graph(((elements,),)), cluster, 1e-3)
    population = encode([strategy_of(domain, lambda variable: HOLDING[kind])], domain)
    plans = compile_plans_fast(population, domain)
    played = play_one(plans, population, domain, 0)
    place = plans.operation.tolist().index(PROBED_OPERATION[kind])
    seconds = float(played.arrived[place] - played.issued[place])
    ranks = tuple(range(cluster.world_size))
    return MessageSample(kind, float(plans.wire_bytes[place]), ranks, seconds)


def test_every_probed_operation_pays_the_cost_of_its_kind() -> None:
    assert {kind: COST_KIND[op] for kind, op in PROBED_OPERATION.items()} == {
        kind: kind for kind in PROBED_OPERATION
    }


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("kind", HOLDING)
def test_the_link_time_of_a_kind_is_what_the_timeline_adds(
    kind: MessageKind, backend: Backend
) -> None:
    for workers in (2, 3, 4, 8):
        free = cluster_of(workers, backend=backend)  # startups and copies are stated as nothing
        sample = played_sample(free, kind, 240_000)
        assert link_seconds(free, sample) == pytest.approx(sample.seconds, rel=1e-9)


@pytest.mark.parametrize("kind", HOLDING)
def test_the_costs_that_made_the_samples_are_found_again(kind: MessageKind) -> None:
    truth = MessageCost(kind, 3e-4, 2e-5, 4e-9)

    def stated(workers: int) -> Cluster:
        others = tuple(cost for cost in cluster_of().costs if cost.kind != kind)
        return replace(cluster_of(workers), costs=(truth, *others))

    samples = tuple(
        played_sample(stated(workers), kind, elements)
        for workers in (2, 3, 4, 8)
        for elements in (240, 24_000, 2_400_000)
    )
    found = with_message_costs(cluster_of(8), MessageSamples(samples, True)).cost(kind)
    assert found.startup_seconds == pytest.approx(truth.startup_seconds, rel=1e-3)
    assert found.startup_seconds_per_worker == pytest.approx(2e-5, rel=1e-3)
    assert found.seconds_per_byte == pytest.approx(truth.seconds_per_byte, rel=1e-3)
    assert found.residual == pytest.approx(0.0, abs=1e-6)


def test_links_own_time_by_kind() -> None:
    def seconds(cluster: Cluster, kind: MessageKind, size: float, ranks: tuple[int, ...]) -> float:
        return link_seconds(cluster, MessageSample(kind, size, ranks, 0.0))

    cluster, everyone = grid_cluster(4, 1, 0.8), (0, 1, 2, 3)  # 1e8 bytes a second
    assert seconds(cluster, "all_reduce", 1e8, everyone) == pytest.approx(1.5)
    assert seconds(cluster, "reduce", 1e8, everyone) == pytest.approx(1.5)
    assert seconds(cluster, "all_to_all", 1e8, everyone) == pytest.approx(0.75)
    assert seconds(cluster, "all_gather", 1e8, everyone) == pytest.approx(0.75)
    assert seconds(cluster, "send_recv", 1e8, everyone) == pytest.approx(3.0)
    # a broadcast to eight ranks leaves its root three times
    assert seconds(cluster_of(8), "broadcast", 1e8, tuple(range(8))) == pytest.approx(3.0)
    assert seconds(grid_cluster(2, 2), "all_reduce", 2.5e9, (0, 1)) == pytest.approx(1.0)


def test_a_cost_holds_no_link_time_that_the_timeline_adds() -> None:
    cluster, ranks = grid_cluster(4, 1, 0.8), (0, 1, 2, 3)  # 1e8 bytes a second
    samples = tuple(
        MessageSample("all_reduce", size, ranks, 2e-3 + size * 1.5e-8) for size in (1e3, 1e7)
    )

    def fitted(at_cluster_rates: bool, burst_bytes: float = 0.0) -> MessageCost:
        told = MessageSamples(samples, at_cluster_rates, burst_bytes)
        return with_message_costs(cluster, told).cost("all_reduce")

    assert fitted(True).seconds_per_byte == pytest.approx(0.0, abs=1e-15)
    # On loopback all of it is a cost.
    assert fitted(False).seconds_per_byte == pytest.approx(1.5e-8, rel=1e-2)
    # A burst of 1e5 bytes passes a shaper in no time: 1 ms of what the links took was not theirs.
    burst = fitted(True, 1e5)
    assert burst.seconds_per_byte * 1e7 == pytest.approx(1e-3, rel=2e-2)


def test_no_cost_is_negative() -> None:
    samples = [
        MessageSample("reduce", 1e3, tuple(range(workers)), seconds)
        for workers, seconds in ((2, 3e-3), (3, 2e-3), (4, 1e-3))
    ]
    falling = fit_message_cost(samples, np.zeros(3))
    assert falling.startup_seconds_per_worker == 0.0
    assert falling.startup_seconds + falling.seconds_per_byte * 1e3 > 0
    swift = fit_message_cost(samples, np.full(3, 1e-2))
    assert (swift.startup_seconds, swift.seconds_per_byte) == (0.0, 0.0)


def test_costs_of_other_kinds_stay() -> None:
    cluster = cluster_of(4, startup=7e-3)
    sample = MessageSample("all_reduce", 1e3, (0, 1), 1e-3)
    found = with_message_costs(cluster, MessageSamples((sample,), False))
    assert found.cost("broadcast") == cluster.cost("broadcast")
    assert found.cost("all_reduce") != cluster.cost("all_reduce")
    assert len(found.costs) == len(cluster.costs)


@given(startup=st.floats(0, 1e-2), per_worker=st.floats(0, 1e-3), per_byte=st.floats(0, 1e-9))
def test_a_line_is_found_again(startup: float, per_worker: float, per_byte: float) -> None:
    samples = [
        MessageSample(
            "all_reduce",
            size,
            tuple(range(workers)),
            1e-4 + startup + per_worker * workers + per_byte * size,
        )
        for size in (1e3, 1e5, 1e7)
        for workers in (2, 3, 4)
    ]
    cost = fit_message_cost(samples, np.full(len(samples), 1e-4))
    assert cost.residual == pytest.approx(0, abs=1e-6)
    for sample in samples:
        predicted = (
            cost.startup_seconds
            + cost.startup_seconds_per_worker * len(sample.workers)
            + cost.seconds_per_byte * sample.size_bytes
        )
        assert predicted == pytest.approx(sample.seconds - 1e-4, rel=1e-3, abs=1e-9)
