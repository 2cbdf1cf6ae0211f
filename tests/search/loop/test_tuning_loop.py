"""The loop's logic on a machine that answers from a table: order, resuming, confirmation."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from autosync.cluster import MessageCost
from autosync.domain import Domain
from autosync.errors import AutosyncError, InvalidInput
from autosync.population import Population, decode, encode
from autosync.search.loop.memory_store import MemoryStore
from autosync.search.loop.outcome import Outcome, TuningEvent
from autosync.search.loop.proposing import SHORTLIST_SIZE, shortlist
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_loop import StopRule, learn, never, tune
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.analytic import AnalyticSimulator
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy
from autosync.trials.contract import TrialError, TrialRequest, TrialResult
from tests.domains import domain_of, grid_cluster
from tests.search.killed import Killed

DOMAIN = domain_of(cluster=grid_cluster(2, 2, gbps=0.01))
SETTINGS = Settings(budget=10, proposals=64, repeats=4)


class TablePool:
    """A cluster whose iteration times are given by a function of the strategy."""

    description = "a table"

    def __init__(self, seconds: Callable[[Strategy], float | None], dies_after: int = 10**9):
        self.seconds = seconds
        self.ran: list[str] = []
        self.recorded: list[str] = []
        self.closed = False
        self.dies_after = dies_after

    def run(self, request: TrialRequest) -> TrialResult:
        if len(self.ran) >= self.dies_after:
            raise Killed
        self.ran.append(request.key)
        if request.record:
            self.recorded.append(request.key)
        value = self.seconds(request.bundle.strategy)
        error = None if value else TrialError("crashed", "the worker fell over")
        iterations = (value,) * request.iterations if value else ()
        return TrialResult(request.key, iterations, value, 0.0, error, "table", 1.0, 1.0)

    def close(self) -> None:
        self.closed = True


def by_simulator(strategy: Strategy) -> float:
    return float(AnalyticSimulator().predict(DOMAIN, encode([strategy], DOMAIN))[0])


def ddp_is_best(strategy: Strategy) -> float:
    return 1.0 if strategy.schedule.order == "ddp" else 1.005


def run(
    pool: TablePool,
    store: MemoryStore,
    settings: Settings = SETTINGS,
    stop: StopRule = never,
) -> Outcome:
    events: list[TuningEvent] = []
    simulator = AnalyticSimulator()
    outcome = tune(DOMAIN, Space(), lambda: pool, store, simulator, settings, events.append, stop)
    assert pool.closed
    assert events[-1].kind == "done"
    return outcome


def test_ddp_is_measured_first_and_the_budget_is_kept() -> None:
    pool, store = TablePool(by_simulator), MemoryStore()
    outcome = run(pool, store)
    searched = [p for p in store.proposals() if p.phase == "search"]
    assert searched[0].candidate.origin == "ddp"
    assert len(searched) == SETTINGS.budget
    assert len({p.candidate.strategy.id for p in searched}) == SETTINGS.budget
    assert {p.candidate.origin for p in searched} > {"ddp", "sampled"}
    assert [row.step_seconds for row in outcome.ranked] == sorted(
        row.step_seconds or np.inf for row in outcome.ranked
    )


def test_finalists_and_ddp_alternate_and_the_winner_is_confirmed() -> None:
    pool, store = TablePool(by_simulator), MemoryStore()
    outcome = run(pool, store)
    confirming = [key.split("/")[2] for key in pool.ran if key.startswith("confirm/")]
    assert len(confirming) == 4 * SETTINGS.repeats
    assert confirming[:4] == confirming[7:3:-1]
    assert outcome.repeats == SETTINGS.repeats
    assert not outcome.keep_ddp
    assert outcome.best_seconds == pytest.approx(by_simulator(outcome.best.strategy))
    assert outcome.speedup == pytest.approx(outcome.ddp_seconds / outcome.best_seconds)


def test_the_finalists_and_ddp_record_their_timelines_once() -> None:
    pool = TablePool(by_simulator)
    run(pool, MemoryStore())
    assert pool.recorded == [key for key in pool.ran if key.startswith("confirm/0/")]
    assert len(pool.recorded) == 4


def test_keeping_ddp_is_an_answer() -> None:
    outcome = run(TablePool(ddp_is_best), MemoryStore())
    assert outcome.keep_ddp
    assert outcome.best.strategy.schedule.order == "ddp"
    assert outcome.speedup == 1.0


@pytest.mark.parametrize("dies_after", [0, 1, 5, 11, 14])
def test_a_killed_tuning_goes_on_where_it_stopped(dies_after: int) -> None:
    undisturbed = TablePool(by_simulator)
    expected = run(undisturbed, MemoryStore())
    store = MemoryStore()
    first, second = TablePool(by_simulator, dies_after), TablePool(by_simulator)
    with pytest.raises(Killed):
        run(first, store)
    outcome = run(second, store)
    assert first.ran + second.ran == undisturbed.ran
    assert outcome == expected


def test_a_failing_trial_costs_only_itself() -> None:
    def fails(strategy: Strategy) -> float | None:
        return None if strategy.schedule.order == "priority" else by_simulator(strategy)

    outcome = run(TablePool(fails), MemoryStore())
    failed = [row for row in outcome.ranked if row.step_seconds is None]
    assert failed
    assert all(row.error == "crashed: the worker fell over" for row in failed)
    assert outcome.ranked[-1] is failed[-1]


def test_without_ddp_there_is_no_comparison() -> None:
    def no_ddp(strategy: Strategy) -> float | None:
        return None if strategy.schedule.order == "ddp" else by_simulator(strategy)

    with pytest.raises(AutosyncError, match="DDP could not be measured"):
        run(TablePool(no_ddp), MemoryStore())


def test_stopping_keeps_what_was_measured() -> None:
    """As a user's cancellation does: both phases end."""
    pool = TablePool(by_simulator)
    outcome = run(pool, MemoryStore(), stop=lambda phase: len(pool.ran) >= 2)
    assert outcome.cancelled
    assert len(pool.ran) == len(outcome.ranked) == 2


def test_a_search_that_is_stopped_is_confirmed_all_the_same() -> None:
    """As a time budget does: proposals of the search that were not run stay so."""
    pool, store = TablePool(by_simulator), MemoryStore()
    outcome = run(pool, store, stop=lambda phase: phase == "search" and len(pool.ran) >= 3)
    phases = [key.split("/")[0] for key in pool.ran]
    assert phases == ["search"] * 3 + ["confirm"] * 3 * SETTINGS.repeats
    assert sum(p.phase == "search" for p in store.proposals()) > 3
    assert outcome.repeats == SETTINGS.repeats
    assert not outcome.cancelled


def test_a_confirmation_that_is_stopped_counts_what_was_run() -> None:
    pool = TablePool(by_simulator)
    most = SETTINGS.budget + 2 * 4 + 1  # the third repeat begins with DDP
    outcome = run(pool, MemoryStore(), stop=lambda phase: len(pool.ran) >= most)
    assert len(pool.ran) == most
    assert outcome.speedup == pytest.approx(outcome.ddp_seconds / outcome.best_seconds)
    assert not outcome.cancelled


def test_a_negative_budget_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="budget is -3"):
        replace(SETTINGS, budget=-3)


class Contrary(TimelineSimulator):
    """Learns that the timeline is wrong: what it finds fast is slow."""

    name = "contrary"

    def predict(self, domain: Domain, population: Population) -> NDArray[np.float64]:
        return 1.0 / super().predict(domain, population)

    def predict_with_std(
        self, domain: Domain, population: Population
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Sure of all that cuts long messages."""
        return self.predict(domain, population), np.where(population.slice_bytes, 0.0, 10.0)

    def refit(
        self, domain: Domain, population: Population, step_seconds: NDArray[np.float64]
    ) -> None:
        assert len(population) == len(step_seconds)


def test_what_learns_judges_what_the_timeline_leaves() -> None:
    def ignore(done: int) -> None:
        assert done >= 0

    plain = shortlist(DOMAIN, Space(), TimelineSimulator(), 600, 5, ignore)
    learned = shortlist(DOMAIN, Space(), Contrary(), 600, 5, ignore, optimism=0.0)
    for kept in (plain, learned):
        assert len(kept.population) == len(kept.index) == len(kept.seconds) == SHORTLIST_SIZE
        assert (np.diff(kept.seconds) >= 0).all()
    # All 600 pass the timeline's shortlist, so opposite judges keep opposite ends of them.
    assert plain.index[0] not in learned.index
    first = decode(learned.population, 0, DOMAIN)
    assert first == decode(sample(DOMAIN, Space(), int(learned.index[0]), 1, 5), 0, DOMAIN)


def test_what_may_be_faster_than_predicted_goes_first() -> None:
    def ignore(done: int) -> None:
        assert done >= 0

    kept = shortlist(DOMAIN, Space(), Contrary(), 600, 5, ignore, optimism=1.0)
    unsure = kept.population.slice_bytes == 0
    count = int(unsure.sum())
    assert 0 < count < SHORTLIST_SIZE
    assert unsure[:count].all()
    assert (kept.promise[~unsure] == kept.seconds[~unsure]).all()
    assert (kept.promise[unsure] < kept.seconds[unsure]).all()


def test_trials_correct_the_costs_that_the_timeline_predicts_with() -> None:
    """Messages cost more than is assumed; the analytic simulator is no judge of that."""
    costs = tuple(
        MessageCost(kind, 3e-3) for kind in ("all_reduce", "send_recv", "all_to_all", "all_gather")
    )
    true = replace(DOMAIN, cluster=replace(DOMAIN.cluster, costs=costs))
    timeline = TimelineSimulator()

    def measured(strategy: Strategy) -> float:
        return float(timeline.predict(true, encode([strategy], true))[0])

    store = MemoryStore()
    run(TablePool(measured), store)
    unseen = sample(DOMAIN, Space(), 1_000, 64, 1)
    truth = timeline.predict(true, unseen)

    def off_by(domain: Domain) -> float:
        return float(np.median(np.abs(np.log(timeline.predict(domain, unseen) / truth))))

    assert learn(DOMAIN, AnalyticSimulator(), store) is DOMAIN
    assert off_by(learn(DOMAIN, timeline, store)) < off_by(DOMAIN)
