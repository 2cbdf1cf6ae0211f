"""The loop's logic on a machine that answers from a table: order, resuming, confirmation."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from autosync.cluster import MessageCost
from autosync.domain import Domain
from autosync.errors import AutosyncError
from autosync.population import Population, decode, encode
from autosync.search.designs.known_designs import ddp, dear
from autosync.search.loop import proposing
from autosync.search.loop.confirm import FAILING
from autosync.search.loop.outcome import Outcome, TuningEvent, is_ddp
from autosync.search.loop.proposing import proposals_of
from autosync.search.loop.ranking import SHORTLIST_SIZE, RankingContext, Shortlist
from autosync.search.loop.settings import Settings
from autosync.search.loop.sources import drawn_shortlist
from autosync.search.loop.tuning_loop import StopRule, learn, never, tune
from autosync.search.loop.tuning_store import Candidate, MemoryStore
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.analytic import AnalyticSimulator
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy
from autosync.trials.contract import TrialError, TrialRequest, TrialResult
from tests.domains import domain_of, grid_cluster
from tests.long_parameters import long_after
from tests.search.killed import Killed

DOMAIN = domain_of(cluster=grid_cluster(2, 2, gbps=0.01))
SETTINGS = Settings(budget=10, proposals=64, repeats=4)
CRASHED = TrialError("crashed", "the worker fell over")


class TablePool:
    """A cluster whose iteration times are given by a function of the strategy."""

    description = "a table"

    def __init__(
        self,
        seconds: Callable[[Strategy], float | None],
        dies_after: int = 10**9,
        error: TrialError = CRASHED,
    ):
        self.seconds = seconds
        self.error = error
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
        error = None if value else self.error
        iterations = (value,) * request.iterations if value else ()
        return TrialResult(request.key, iterations, value, 0.0, error, "table", 1.0, 1.0)

    def close(self) -> None:
        self.closed = True


def by_simulator(strategy: Strategy) -> float:
    return float(AnalyticSimulator().predict(DOMAIN, encode([strategy], DOMAIN))[0])


def ddp_is_best(strategy: Strategy) -> float:
    return 1.0 if strategy.schedule.order == "ddp" else 1.005


def run(
    pool: TablePool, store: MemoryStore, settings: Settings = SETTINGS, stop: StopRule = never
) -> Outcome:
    events: list[TuningEvent] = []
    simulator = AnalyticSimulator()
    outcome = tune(DOMAIN, Space(), lambda: pool, store, simulator, settings, events.append, stop)
    assert pool.closed
    assert events[-1].kind == "done"
    return outcome


def test_ddp_is_measured_first_and_the_budget_is_kept() -> None:
    pool, store = TablePool(by_simulator), MemoryStore()
    outcome = run(pool, store, replace(SETTINGS, refined_share=0.0, neighbour_share=0.0))
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
    assert len(confirming) == 4 * 2 + 2 * 2  # two repeats choose, two report
    assert confirming[:4] == confirming[7:3:-1]
    assert outcome.repeats == SETTINGS.repeats // 2
    assert not outcome.keep_ddp
    assert outcome.best_seconds == pytest.approx(by_simulator(outcome.best.strategy))
    assert outcome.ddp_seconds == outcome.baseline_seconds
    assert outcome.speedup == pytest.approx(outcome.baseline_seconds / outcome.best_seconds)


def test_the_finalists_and_ddp_record_their_timelines_once() -> None:
    pool = TablePool(by_simulator)
    run(pool, MemoryStore())
    assert pool.recorded == [key for key in pool.ran if key.startswith("confirm/0/")]
    assert len(pool.recorded) == 4


def test_a_trial_is_given_the_time_that_it_is_predicted_to_take() -> None:
    """A pool may then tell a slow trial from one that hangs."""
    expected: dict[str, float] = {}

    class NotingPool(TablePool):
        def run(self, request: TrialRequest) -> TrialResult:
            expected[request.key] = request.expected_seconds
            return super().run(request)

    store = MemoryStore()
    run(NotingPool(by_simulator), store)
    assert expected == {p.key: p.candidate.predicted_seconds for p in store.proposals()}


def test_keeping_ddp_is_an_answer() -> None:
    outcome = run(TablePool(ddp_is_best), MemoryStore())
    assert outcome.keep_ddp
    assert outcome.best.strategy.schedule.order == "ddp"
    assert outcome.speedup == 1.0


def assert_a_killed_tuning_goes_on(dies_after: int, settings: Settings) -> None:
    undisturbed = TablePool(by_simulator)
    expected = run(undisturbed, MemoryStore(), settings)
    store = MemoryStore()
    first, second = TablePool(by_simulator, dies_after), TablePool(by_simulator)
    with pytest.raises(Killed):
        run(first, store, settings)
    assert run(second, store, settings) == expected
    assert first.ran + second.ran == undisturbed.ran


@pytest.mark.parametrize("dies_after", long_after(2, [5, 14, 0, 1, 11]))
def test_a_killed_tuning_goes_on_where_it_stopped(dies_after: int) -> None:
    assert_a_killed_tuning_goes_on(dies_after, SETTINGS)


def test_a_killed_search_of_all_sources_goes_on_as_it_would_have() -> None:
    assert_a_killed_tuning_goes_on(13, replace(SETTINGS, budget=20, neighbour_share=0.25))


def test_a_failing_trial_costs_only_itself() -> None:
    def fails(strategy: Strategy) -> float | None:
        return None if strategy.schedule.order == "priority" else by_simulator(strategy)

    outcome = run(TablePool(fails), MemoryStore())
    failed = [row for row in outcome.ranked if row.step_seconds is None]
    assert failed
    assert all(row.error == "crashed: the worker fell over" for row in failed)
    assert outcome.ranked[-1] is failed[-1]


def test_an_event_says_why_a_strategy_was_refused() -> None:
    """In a running job nothing else does."""
    full = TrialError("refused", "no room beside the job")
    pool = TablePool(lambda strategy: 1.0 if is_ddp(strategy) else None, error=full)
    events: list[TuningEvent] = []
    simulator = AnalyticSimulator()
    tune(DOMAIN, Space(), lambda: pool, MemoryStore(), simulator, SETTINGS, events.append)
    refused = [event.message for event in events if ": refused" in event.message]
    assert refused
    assert all(each.endswith(": refused: no room beside the job") for each in refused)


def test_without_ddp_there_is_no_comparison() -> None:
    def no_ddp(strategy: Strategy) -> float | None:
        return None if strategy.schedule.order == "ddp" else by_simulator(strategy)

    pool, store = TablePool(no_ddp), MemoryStore()
    for _ in range(2):  # as it goes on later, too
        with pytest.raises(AutosyncError, match="DDP could not be measured"):
            run(pool, store)
    first = pool.ran[0]
    assert pool.ran == [first, f"{first}/1"]  # whatever else is measured would tell nothing
    assert store.proposals()[-1].candidate.origin == "ddp"


def test_a_tuning_that_ended_with_ddps_failure_goes_on_once_ddp_runs() -> None:
    """As after a host that could not be reached: that trial alone runs again, before all others."""
    store, broken = MemoryStore(), TablePool(lambda strategy: None)
    with pytest.raises(AutosyncError, match="DDP could not be measured"):
        run(broken, store)
    mended = TablePool(by_simulator)
    outcome = run(mended, store)
    assert mended.ran[0] == f"{broken.ran[0]}/1"
    assert len({*broken.ran, *mended.ran}) == len(broken.ran) + len(mended.ran)
    assert outcome.ddp_seconds == outcome.baseline_seconds
    assert sum(key.startswith("search/") for key in mended.ran) == SETTINGS.budget - 1


@pytest.mark.parametrize("sound", [2, SETTINGS.budget + 3])
def test_hosts_that_are_lost_end_a_tuning_which_goes_on_once_they_are_back(sound: int) -> None:
    """Else all trials that are left would fail, and DDP be kept as if nothing were faster. sound:
    trials before, those of the search alone or three of the confirmation too."""
    store, broken, mended = MemoryStore(), TablePool(by_simulator), TablePool(by_simulator)
    broken.seconds = lambda each: by_simulator(each) if len(broken.ran) <= sound else None
    with pytest.raises(AutosyncError, match="DDP could not be measured"):
        run(broken, store)
    first = broken.ran[0]
    assert len(broken.ran) == sound + FAILING + 1
    assert broken.ran[-1] == f"{first}/1"
    outcome = run(mended, store)
    assert mended.ran[0] == f"{first}/2"
    assert not outcome.cancelled
    assert outcome.repeats == SETTINGS.repeats // 2


def test_strategies_that_fail_in_a_row_end_nothing_where_ddp_runs() -> None:
    """And DDP runs again ever more seldom."""
    pool = TablePool(lambda strategy: 1.0 if is_ddp(strategy) else None)
    assert run(pool, MemoryStore(), replace(SETTINGS, budget=16)).keep_ddp
    again = [key for key in pool.ran if key.startswith(f"{pool.ran[0]}/")]
    assert [pool.ran.index(key) for key in again] == [1 + FAILING, 2 + 3 * FAILING]


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
    assert phases == ["search"] * 3 + ["confirm"] * (3 * 2 + 2 * 2)
    assert sum(p.phase == "search" for p in store.proposals()) > 3
    assert outcome.repeats == SETTINGS.repeats // 2
    assert not outcome.cancelled


def test_a_confirmation_that_is_stopped_counts_what_was_run() -> None:
    pool = TablePool(by_simulator)
    most = SETTINGS.budget + 2 * 4 + 1  # the third repeat begins with DDP
    outcome = run(pool, MemoryStore(), stop=lambda phase: len(pool.ran) >= most)
    assert len(pool.ran) == most
    assert outcome.ddp_seconds == outcome.baseline_seconds
    assert outcome.speedup == pytest.approx(outcome.baseline_seconds / outcome.best_seconds)
    assert not outcome.cancelled


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


def shortlisted(context: RankingContext) -> Shortlist:
    return drawn_shortlist(context, Space(), 600, 5, lambda done: None)


def test_what_learns_judges_what_the_timeline_leaves() -> None:
    plain = shortlisted(RankingContext(DOMAIN, TimelineSimulator()))
    learned = shortlisted(RankingContext(DOMAIN, Contrary(), "prediction"))
    for kept in (plain, learned):
        assert len(kept.population) == len(kept.index) == len(kept.seconds) == SHORTLIST_SIZE
        assert (np.diff(kept.seconds) >= 0).all()
    # All 600 pass the timeline's shortlist, so opposite judges keep opposite ends of them.
    assert plain.index[0] not in learned.index
    first = decode(learned.population, 0, DOMAIN)
    assert first == decode(sample(DOMAIN, Space(), int(learned.index[0]), 1, 5), 0, DOMAIN)


def test_what_may_be_faster_than_predicted_goes_first() -> None:
    kept = shortlisted(RankingContext(DOMAIN, Contrary(), "lower_bound"))
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


def test_each_source_has_its_share_of_a_rounds_trials() -> None:
    """Trials take twice what is predicted, so by its prediction anything could be the fastest."""
    settings = replace(
        SETTINGS,
        budget=24,
        first_designs=12,
        design_share=0.0,
        refined_share=0.25,
        neighbour_share=0.25,
    )
    store = MemoryStore()
    run(TablePool(lambda strategy: 2.0 * by_simulator(strategy)), store, settings)
    rounds: dict[int, list[str]] = {}
    for proposal in store.proposals():
        if proposal.phase == "search":
            rounds.setdefault(proposal.round, []).append(proposal.candidate.origin)
    later = [rounds[number] for number in sorted(rounds) if number]
    assert later == [["sampled", "sampled", "refined", "neighbour"]] * 3
    searched = [p for p in store.proposals() if p.phase == "search"]
    assert len({p.candidate.strategy.id for p in searched}) == len(searched) == 24


class Sure(Contrary):
    """Is sure that nothing is faster than a second."""

    def predict_with_std(
        self, domain: Domain, population: Population
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.full(len(population), 1.0), np.full(len(population), 0.001)


@pytest.mark.parametrize(("least_gain", "rounds"), [(0.0, 5), (0.01, 1)])
def test_a_search_without_gain_ends_and_is_confirmed(least_gain: float, rounds: int) -> None:
    """The hand-designed strategies take 0.9 and more: what is left to try promises nothing."""
    settings = replace(SETTINGS, budget=24, least_gain=least_gain)
    pool, store = TablePool(lambda strategy: 0.9), MemoryStore()
    tune(DOMAIN, Space(), lambda: pool, store, Sure(), settings, lambda event: None)
    assert len({p.round for p in store.proposals() if p.phase == "search"}) == rounds
    assert any(p.phase == "confirm" for p in store.proposals())
    again = TablePool(lambda strategy: 0.9)
    tune(DOMAIN, Space(), lambda: again, store, Sure(), settings, lambda event: None)
    assert again.ran == []


def test_the_last_trial_of_a_budget_runs_though_it_promises_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A round of one trial may have but a buffer to tune that is predicted slower than the best."""
    store = MemoryStore()
    store.propose(proposals_of([Candidate(ddp(DOMAIN), 1.0, "analytic", "ddp")], 0))
    key = store.proposals()[0].key
    store.record(TrialResult(key, (1.0,), 1.0, 0.0, None, "a table", 1.0, 1.0))
    slower = Candidate(dear(DOMAIN), 1.1, "analytic", "dear_tuned")
    monkeypatch.setattr(proposing, "tuned_fusion", lambda *given: [slower])
    for least_gain, expected in ((0.0, [slower]), (0.01, [])):
        settings = replace(SETTINGS, least_gain=least_gain)
        simulator = AnalyticSimulator()
        chosen = proposing.propose(
            DOMAIN, Space(), simulator, store, settings, 1, lambda event: None
        )
        assert [each.candidate for each in chosen] == expected


def race(
    seconds: Callable[[Strategy, int], float | None], repeats: int
) -> tuple[Outcome, dict[str, int]]:
    """The outcome, and how often each finalist ran in the confirmation."""
    store, ran = MemoryStore(), dict[str, int]()

    class RepeatPool(TablePool):
        def run(self, request: TrialRequest) -> TrialResult:
            phase, repeat, *_ = request.key.split("/")
            if phase == "confirm":
                own = request.bundle.strategy.id
                ran[own] = ran.get(own, 0) + 1
            self.seconds = lambda strategy: seconds(strategy, int(repeat))
            return super().run(request)

    outcome = run(RepeatPool(by_simulator), store, replace(SETTINGS, repeats=repeats))
    return outcome, ran


def test_finalists_that_are_clearly_slower_leave_the_race() -> None:
    """The one that wins and DDP run every repeat, the two others the first four."""
    outcome, ran = race(lambda strategy, repeat: by_simulator(strategy), 20)
    assert sorted(ran.values()) == [4, 4, 20, 20]
    assert ran[outcome.best.strategy.id] == 2 * outcome.repeats == 20


def test_only_the_winner_and_ddp_run_in_the_half_that_reports() -> None:
    """Of three finalists one leaves after four repeats, a close one when ten have chosen."""
    order: dict[str, int] = {}

    def alternating(strategy: Strategy, repeat: int) -> float:
        if strategy.schedule.order == "ddp":
            return 1.0
        place = order.setdefault(strategy.id, len(order))
        if place == 0:
            return 0.5 + 0.01 * (repeat % 2)
        return 0.505 if place == 1 else 0.6 + 0.01 * place

    outcome, ran = race(alternating, 20)
    assert sorted(ran.values()) == [4, 10, 20, 20]
    assert outcome.repeats == 10


def test_what_is_reported_is_of_repeats_that_did_not_choose() -> None:
    """The winner takes 0.4 s in the repeats that choose it, which was luck, and 0.6 s after."""

    def seconds(strategy: Strategy, repeat: int) -> float:
        if strategy.schedule.order == "ddp":
            return 1.0 if repeat < 5 else 1.2
        return 0.4 if repeat < 5 else 0.6

    outcome, _ = race(seconds, 10)
    best = next(r for r in outcome.ranked if r.candidate.strategy.id == outcome.best.strategy.id)
    assert best.step_seconds == outcome.best_seconds == pytest.approx(0.6)
    assert outcome.baseline_seconds == pytest.approx(1.2)
    assert outcome.speedup == pytest.approx(2.0)


@pytest.mark.parametrize(("odd", "keeps"), [(1, False), (2, True)])
def test_one_odd_repeat_of_ten_does_not_keep_ddp(odd: int, keeps: bool) -> None:
    """In the others the winner is a little faster, so a percentile between two repeats would."""

    def seconds(strategy: Strategy, repeat: int) -> float:
        if strategy.schedule.order == "ddp":
            return 1.0
        return 1.3 if repeat < odd else 0.985

    outcome, _ = race(seconds, 10)
    assert outcome.keep_ddp is keeps


def test_repeats_of_which_none_ran_both_compare_nothing() -> None:
    def seconds(strategy: Strategy, repeat: int) -> float | None:
        fails = (repeat == 1) == (strategy.schedule.order == "ddp")
        return None if fails else 0.5

    outcome, ran = race(seconds, 2)
    assert len(ran) > 1
    assert outcome.keep_ddp
