"""Costs are found again from iterations that the timeline made up, and from recorded ones; a real
probe runs."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.cluster import Cluster, Device, MessageCost, Node
from autosync.codes import Op
from autosync.domain import Domain
from autosync.errors import InvalidInput, NotSupported
from autosync.population import Population, encode
from autosync.search.cluster_probe import (
    MOST_GRADIENT_BYTES,
    OVERLAP_MESSAGES,
    measure_overlap,
    probe_costs,
    probing_domain,
    probing_strategies,
)
from autosync.search.loop.outcome import TuningEvent
from autosync.search.loop.settings import Settings
from autosync.simulator.collective_predictions import predicted_collectives
from autosync.simulator.fitting.iteration_costs import fit_costs
from autosync.simulator.fitting.message_costs import fit_overlap_slowdown
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.iteration_trace import predicted_iteration
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy
from autosync.trials.contract import (
    ComputeTimes,
    MeasuredTimeline,
    MessageTimes,
    Phase,
    RankTimeline,
    TrialError,
    TrialRequest,
    TrialResult,
)
from autosync.trials.launchers.local_launcher import LocalLauncher
from autosync.trials.launchers.testbed_launcher import TestbedLauncher
from autosync.verification import verify
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.simulator.worked_examples import KINDS, cluster_of


def invented(cluster: Cluster) -> Cluster:
    """Costs as measured on a testbed, about."""
    costs = tuple(
        MessageCost(kind, 1e-4, 1e-4, 5e-11, host_seconds=3e-4, host_seconds_per_byte=2e-10)
        for kind in KINDS
    )
    return replace(cluster, costs=costs)


def probing(cluster: Cluster, brief: bool = False) -> tuple[Domain, Population]:
    domain = probing_domain(cluster, 1.0)
    return domain, encode([s for _, s in probing_strategies(domain, brief)], domain)


@pytest.mark.parametrize("cluster", [grid_cluster(4), grid_cluster(2, 2)])
@pytest.mark.parametrize("brief", [False, True])
def test_the_strategies_run_and_hold_every_kind_from_one_to_hundreds(
    cluster: Cluster, brief: bool
) -> None:
    domain, population = probing(cluster, brief)
    for _, strategy in probing_strategies(domain, brief):
        verify(strategy, domain)
    grouped = cluster.world_size > len(cluster.nodes)
    expected = (12 if grouped else 10) if brief else (31 if grouped else 27)
    assert len(population) == expected  # as `probe_costs` says
    counts = np.diff(compile_plans_fast(population, domain).first)
    assert counts.min() <= 8
    assert counts.max() >= 128
    operations = set(compile_plans_fast(population, domain).operation.tolist())
    assert operations >= {Op.ALL_REDUCE, Op.REDUCE_SCATTER, Op.ALL_GATHER, Op.PUSH, Op.PULL}
    if not brief:
        assert operations >= {Op.REDUCE, Op.BROADCAST}


def test_fitted_costs_predict_what_made_the_measurements() -> None:
    cluster = grid_cluster(4, gbps=0.5)
    domain, population = probing(cluster)
    truth = replace(domain, cluster=invented(cluster))
    noise = np.random.default_rng(1).lognormal(0, 0.01, len(population))
    seconds = TimelineSimulator().predict(truth, population) * noise
    found = fit_costs(domain, population, seconds)
    assert found.residual < found.before / 2
    assert found.predicted == pytest.approx(seconds, rel=0.15)
    unseen, others = probing(grid_cluster(4, gbps=0.5), brief=True)
    carried = TimelineSimulator().predict(replace(unseen, cluster=found.cluster), others)
    real = TimelineSimulator().predict(replace(unseen, cluster=truth.cluster), others)
    assert carried == pytest.approx(real, rel=0.2)


def test_compute_is_stated_for_the_fastest_device() -> None:
    slow, fast = grid_cluster(2).nodes
    mixed = replace(grid_cluster(2), nodes=(slow, replace(fast, devices=(Device("v100"),))))
    assert probing_domain(mixed, 1.0).profile.device == "v100"


def test_the_probed_model_fits_ranks_of_fast_nodes() -> None:
    """Of eight ports of 400 Gbit/s, on which 16 ranks would sum up 13 GB meanwhile."""
    fast = Node("a", (Device("h200", 8),), 3200.0, 3600.0)
    domain = probing_domain(Cluster("fast", (fast, replace(fast, address="b"))), 1.0)
    size_bytes = domain.graph.size_bytes
    assert MOST_GRADIENT_BYTES <= size_bytes < MOST_GRADIENT_BYTES + 4 * len(domain.graph.variables)
    ring_seconds = size_bytes * 2 * 15 / 16 / 400e9
    assert domain.profile.compute_seconds == pytest.approx(ring_seconds / 2, rel=1e-3)


def test_a_fit_needs_a_positive_measurement_for_each() -> None:
    domain, population = probing(grid_cluster(4), brief=True)
    with pytest.raises(InvalidInput, match="measurements"):
        fit_costs(domain, population, np.ones(len(population) - 1))
    with pytest.raises(InvalidInput, match="are not positive"):
        fit_costs(domain, population, np.zeros(len(population)))


def test_unshaped_links_give_the_costs_of_single_messages() -> None:
    lines: list[str] = []
    found = probe_costs(LocalLauncher(), grid_cluster(3), 1 / 64, 1.0, True, lines.append)
    assert {cost.kind for cost in found.cluster.costs} == set(KINDS)
    assert not len(found.measured)
    assert all(cost.host_seconds == 0.0 for cost in found.cluster.costs)
    assert found.cluster.curves == ()  # loopback is none of the cluster's links
    with pytest.raises(InvalidInput, match="2 ranks"):
        probe_costs(LocalLauncher(), grid_cluster(2), 1.0, 1.0)


def test_a_worker_that_fails_over_a_message_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of so many bytes that no worker holds them."""
    sizes = (1 << 50,)
    monkeypatch.setattr("autosync.search.cluster_probe.brief_sizes", lambda *_: sizes)
    with pytest.raises(NotSupported, match="single messages could not be timed"):
        probe_costs(LocalLauncher(), grid_cluster(3), 1 / 64, 1.0, True)


@pytest.mark.usefixtures("testbed_possible")
def test_shaped_links_are_probed_by_whole_iterations() -> None:
    lines: list[str] = []
    launcher = TestbedLauncher(check=False, repeats=0)
    found = probe_costs(launcher, grid_cluster(3, gbps=0.2), 1.0, 1.0, True, lines.append)
    assert len(found.measured) == len(found.predicted) >= 7
    assert found.residual < found.before
    assert {c.residual for c in found.cluster.costs if c.kind == "all_reduce"} == {found.residual}
    assert any("ring all-reduce, each alone" in line for line in lines)
    curves = {curve.operation: curve for curve in found.cluster.curves}
    assert set(curves) == {"all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter"}
    assert {(curve.ranks, curve.nodes) for curve in curves.values()} == {(3, 3)}
    predicted = predicted_collectives(
        found.cluster, "all_reduce", np.array(curves["all_reduce"].sizes_bytes)
    )
    assert predicted.seconds == pytest.approx(curves["all_reduce"].seconds)


Span = tuple[Phase, float, float]

DOMAIN = domain_of(chain_graph(((250_000,),) * 2), cluster_of(2), 10e-3)
"""Forward takes 20 ms, backward 40."""

BACKWARD_15_LATE: list[Span] = [
    ("forward", 0.0, 0.030),
    ("backward", 0.030, 0.085),
    ("wait", 0.085, 0.090),
    ("update", 0.090, 0.092),
    ("forward", 0.092, 0.096),
    ("wait", 0.096, 0.100),
    ("forward", 0.100, 0.116),
]


def recorded(spans: list[Span], *messages: tuple[float, float]) -> RankTimeline:
    phases, starts, stops = zip(*spans, strict=True)
    begun, ended = tuple(m[0] for m in messages), tuple(m[1] for m in messages)
    times = MessageTimes(tuple(range(len(messages))), begun, begun, ended)
    return RankTimeline(ComputeTimes(phases, starts, stops), times)


def iteration(*ranks: RankTimeline) -> MeasuredTimeline:
    return MeasuredTimeline(0.092, "shared", ranks)


def test_by_hand() -> None:
    # Two at once count once, the wait and the update not at all; the forward pass before backward
    # is another iteration's.
    late = recorded(BACKWARD_15_LATE, (0.030, 0.060), (0.045, 0.071), (0.081, 0.094), (0.095, 0.1))
    even = recorded([("forward", 0.0, 0.02), ("backward", 0.02, 0.06)])
    beside = 41e-3 + 4e-3 + 2e-3 + 1e-3
    found = fit_overlap_slowdown([iteration(late, even)], DOMAIN)
    assert found == pytest.approx(15e-3 / (beside - 15e-3))
    # A rank that loses nothing beside its own message counts as much.
    other = recorded([("forward", 0.0, 0.02), ("backward", 0.02, 0.06)], (0.03, 0.05))
    found = fit_overlap_slowdown([iteration(late, other)] * 2, DOMAIN)
    assert found == pytest.approx(15e-3 / (beside + 20e-3 - 15e-3))


def test_records_that_cannot_tell() -> None:
    unseen = replace(recorded(BACKWARD_15_LATE), messages=None)  # torch's DDP
    apart = recorded(BACKWARD_15_LATE, (0.085, 0.090))
    brief = recorded(BACKWARD_15_LATE, (0.030, 0.040))  # 10 ms cannot have cost 15
    for rank in (unseen, apart, brief):
        assert fit_overlap_slowdown([iteration(rank, rank)], DOMAIN) is None
    assert fit_overlap_slowdown([], DOMAIN) is None
    # compute that is faster than profiled is not slowed
    swift = recorded([("forward", 0.0, 0.02), ("backward", 0.02, 0.05)], (0.03, 0.04))
    assert fit_overlap_slowdown([iteration(swift, swift)], DOMAIN) == 0.0


class ToldPool:
    """A job whose compute messages slow by a half, as the timeline plays it."""

    description = "told"

    def __init__(self, truth: Domain, error: TrialError | None = None):
        self.truth = truth
        self.error = error
        self.strategies: list[Strategy] = []
        self.timeouts: list[float] = []

    def run(self, request: TrialRequest) -> TrialResult:
        assert request.record
        self.strategies.append(request.bundle.strategy)
        self.timeouts.append(request.timeout_seconds)
        timeline = None if self.error else self.timeline(request.bundle.strategy)
        failed = TrialResult(request.key, (), None, None, self.error, "told", 1.0, 1.0)
        return replace(failed, timeline=timeline)

    def timeline(self, strategy: Strategy) -> MeasuredTimeline:
        population = encode([strategy], self.truth)
        plans = compile_plans_fast(population, self.truth)
        trace = predicted_iteration(plans, population, self.truth)
        messages = [(m.on_wire_seconds, m.arrived_seconds) for m in trace.messages]
        kinds: dict[str, Phase] = {"forward": "forward", "backward": "backward", "wait": "wait"}
        spans: list[list[Span]] = [[] for _ in range(self.truth.world_size)]
        for each in trace.compute:
            spans[each.rank].append((kinds[each.phase], each.start_seconds, each.stop_seconds))
        return iteration(*(recorded(each, *messages) for each in spans))

    def close(self) -> None: ...


def test_a_job_measures_it_before_it_searches() -> None:
    graph = chain_graph(((40_000,),) * 40)
    domain = domain_of(graph, cluster_of(2, gbps=0.8), 1e-3)
    truth = replace(domain, cluster=replace(domain.cluster, overlap_slowdown=0.5))
    pool, events = ToldPool(truth), list[TuningEvent]()
    found = measure_overlap(pool, domain, Settings(), events.append)
    assert found.cluster.overlap_slowdown == pytest.approx(0.5, abs=1e-4)
    assert replace(found, cluster=domain.cluster) == domain
    (event,) = events
    assert event.message == "compute is 50% slower while messages are under way"
    groups = {shard for choice in pool.strategies[0].choices for shard in choice.shards}
    assert OVERLAP_MESSAGES / 2 <= len(groups) <= OVERLAP_MESSAGES


def test_a_job_whose_trial_fails_goes_on_without_it() -> None:
    pool, events = ToldPool(DOMAIN, TrialError("crashed", "rank 1: no.")), list[TuningEvent]()
    assert measure_overlap(pool, DOMAIN, Settings(), events.append) is DOMAIN
    assert "not known: rank 1: no." in events[0].message


def test_the_trial_may_take_as_long_as_those_of_the_search() -> None:
    pool, events = ToldPool(DOMAIN, TrialError("crashed", "no.")), list[TuningEvent]()
    for batches in (1, 4):
        domain = replace(DOMAIN, accumulate=batches)
        measure_overlap(pool, domain, Settings(timeout_seconds=10.0), events.append)
    assert pool.timeouts == [10.0, 40.0]
