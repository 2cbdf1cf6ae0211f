"""What recorded iterations say of compute beside messages: by hand, and found again."""

from dataclasses import replace

import pytest

from autosync.domain import Domain
from autosync.population import encode
from autosync.search.cluster_probe import OVERLAP_MESSAGES, measure_overlap
from autosync.search.loop.outcome import TuningEvent
from autosync.search.loop.settings import Settings
from autosync.simulator.fitting.message_costs import fit_overlap_slowdown
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.iteration_trace import predicted_iteration
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
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of

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


def test_compute_that_is_faster_than_profiled_is_not_slowed() -> None:
    swift = recorded([("forward", 0.0, 0.02), ("backward", 0.02, 0.05)], (0.03, 0.04))
    assert fit_overlap_slowdown([iteration(swift, swift)], DOMAIN) == 0.0


def test_records_that_cannot_tell() -> None:
    unseen = replace(recorded(BACKWARD_15_LATE), messages=None)  # torch's DDP
    apart = recorded(BACKWARD_15_LATE, (0.085, 0.090))
    brief = recorded(BACKWARD_15_LATE, (0.030, 0.040))  # 10 ms cannot have cost 15
    for rank in (unseen, apart, brief):
        assert fit_overlap_slowdown([iteration(rank, rank)], DOMAIN) is None
    assert fit_overlap_slowdown([], DOMAIN) is None


class ToldPool:
    """A job whose compute messages slow by a half, as the timeline plays it."""

    description = "told"

    def __init__(self, truth: Domain, error: TrialError | None = None):
        self.truth = truth
        self.error = error
        self.strategies: list[Strategy] = []

    def run(self, request: TrialRequest) -> TrialResult:
        assert request.record
        self.strategies.append(request.bundle.strategy)
        timeline = None if self.error else self.timeline(request.bundle.strategy)
        failed = TrialResult(request.key, (), None, None, self.error, "told", 1.0, 1.0)
        return replace(failed, timeline=timeline)

    def timeline(self, strategy: Strategy) -> MeasuredTimeline:
        population = encode([strategy], self.truth)
        plans = compile_plans_fast(population, self.truth)
        trace = predicted_iteration(plans, population, self.truth)
        messages = [(m.on_wire_seconds, m.arrived_seconds) for m in trace.messages]
        kinds: dict[str, Phase] = {"forward": "forward", "backward": "backward", "wait": "wait"}
        spans = [
            [
                (kinds[i.phase], i.start_seconds, i.stop_seconds)
                for i in trace.compute
                if i.rank == r
            ]
            for r in range(self.truth.world_size)
        ]
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
    assert [event.message for event in events] == [
        "compute is 50% slower while messages are under way"
    ]
    groups = {shard for choice in pool.strategies[0].choices for shard in choice.shards}
    assert OVERLAP_MESSAGES / 2 <= len(groups) <= OVERLAP_MESSAGES


def test_a_job_whose_trial_fails_goes_on_without_it() -> None:
    pool, events = ToldPool(DOMAIN, TrialError("crashed", "rank 1: no.")), list[TuningEvent]()
    assert measure_overlap(pool, DOMAIN, Settings(), events.append) is DOMAIN
    assert "not known: rank 1: no." in events[0].message
