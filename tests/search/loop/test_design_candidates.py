"""The first round is of designs; later ones must earn their trial. What was measured is refined."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import Population, encode
from autosync.search.loop import design_candidates
from autosync.search.loop.design_candidates import earned_designs, known_designs, with_refined
from autosync.search.loop.outcome import rank_measured
from autosync.search.loop.ranking import ranking_context
from autosync.search.loop.settings import Settings
from autosync.search.loop.sources import Searched, child_scale, refined_shortlist
from autosync.search.loop.tuning_loop import run_pending, tune
from autosync.search.loop.tuning_store import FOUND_BY_SEARCH, MemoryStore, Proposal
from autosync.search.space import Space
from autosync.simulator.message_digests import digests_of
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy
from tests.search.loop.test_tuning_loop import DOMAIN, TablePool

SETTINGS = Settings(budget=24, proposals=64, repeats=2)
TIMELINE = TimelineSimulator()
F64 = NDArray[np.float64]


class Doubtful(TimelineSimulator):
    """Learns nothing; its seconds are as doubtful as it is told."""

    name = "doubtful"

    def __init__(self, std: float) -> None:
        self.std = std

    def predict_with_std(self, domain: Domain, population: Population) -> tuple[F64, F64]:
        return self.predict(domain, population), np.full(len(population), self.std)

    def refit(self, domain: Domain, population: Population, step_seconds: F64) -> None:
        assert len(population) == len(step_seconds)


def by_timeline(strategy: Strategy) -> float:
    return float(TIMELINE.predict(DOMAIN, encode([strategy], DOMAIN))[0])


@cache
def tuned(settings: Settings, std: float | None = None) -> dict[int, list[Proposal]]:
    """The rounds of a search. std: of a simulator that states one; None: by the timeline."""
    store = MemoryStore()
    simulator = TIMELINE if std is None else Doubtful(std)
    pool = TablePool(by_timeline)
    tune(DOMAIN, Space(), lambda: pool, store, simulator, settings, lambda event: None)
    rounds: dict[int, list[Proposal]] = {}
    for proposal in store.proposals():
        if proposal.phase == "search":
            rounds.setdefault(proposal.round, []).append(proposal)
    return rounds


def is_design(proposal: Proposal) -> bool:
    origin = proposal.candidate.origin
    return origin not in FOUND_BY_SEARCH and not origin.endswith("_tuned")


@pytest.mark.parametrize(("budget", "first"), [(24, 8), (12, 6), (3, 1)])
def test_the_first_round_is_of_designs_and_leaves_half_of_a_small_budget(
    budget: int, first: int
) -> None:
    rounds = tuned(replace(SETTINGS, budget=budget))
    assert [is_design(proposal) for proposal in rounds[0]][:first] == [True] * first
    assert sum(map(is_design, rounds[0])) == first
    assert rounds[0][0].candidate.origin == "ddp"
    assert sum(map(len, rounds.values())) == budget


def test_designs_of_later_rounds_have_their_share_and_could_be_the_fastest() -> None:
    unsure = tuned(replace(SETTINGS, design_share=0.25), 1.0)
    later = [proposals for number, proposals in unsure.items() if number > 0]
    counts = [sum(map(is_design, proposals)) for proposals in later]
    assert max(counts) == 1, "a quarter of four, where all could be the fastest"
    assert sum(counts) == 4
    names = [
        p.candidate.origin for proposals in unsure.values() for p in filter(is_design, proposals)
    ]
    assert len(set(names)) == len(names)
    sure = tuned(SETTINGS, 0.0)
    best = min(p.candidate.predicted_seconds for p in sure[0])
    assert all(
        p.candidate.predicted_seconds < best for n in sure if n for p in filter(is_design, sure[n])
    )
    none = tuned(replace(SETTINGS, budget=12, design_share=0.0), 1.0)
    assert not any(is_design(p) for number in none if number for p in none[number])


def test_the_likeliest_untried_designs_earn_their_trial() -> None:
    designs = known_designs(DOMAIN, Space(), TIMELINE)
    tried, best = designs[:4], designs[6].predicted_seconds

    def earned(std: float, best_seconds: float | None, room: int) -> list[str]:
        simulator = Doubtful(std)
        found = earned_designs(DOMAIN, Space(), simulator, tried, best_seconds, room)
        return [each.origin for each in found]

    assert earned(0.0, best, 9) == [d.origin for d in designs[4:] if d.predicted_seconds < best]
    assert len(earned(1.0, best, 9)) == 9
    assert len(earned(0.0, None, 9)) == 9, "where nothing is measured all may be"
    twin = replace(designs[4], origin="dear_tuned")
    found = earned_designs(DOMAIN, Space(), Doubtful(1.0), [*tried, twin], best, 99)
    assert twin.strategy.id not in {each.strategy.id for each in found}, "of equal messages one"
    assert earned(0.0, designs[0].predicted_seconds / 1e3, 9) == earned(1.0, best, 0) == []


def test_refined_strategies_are_new_and_judged_beside_their_parent() -> None:
    """Trials take twice what is predicted: so will what is made of them."""
    designs = [d for d in known_designs(DOMAIN, Space(), TIMELINE) if d.origin != "ddp"]
    parents = encode([each.strategy for each in designs[:3]], DOMAIN)
    measured = 2.0 * TIMELINE.predict(DOMAIN, parents)
    context = ranking_context(
        DOMAIN, TIMELINE, "lower_bound", float(measured[0]), [d.strategy for d in designs[:3]]
    )
    searched = Searched(parents, measured, DOMAIN)
    listed = refined_shortlist(context, Space(), searched, 4096, 0)
    again = refined_shortlist(context, Space(), searched, 4096, 0)
    assert len(listed)
    assert (listed.seconds == again.seconds).all()
    np.testing.assert_allclose(
        listed.seconds, 2.0 * TIMELINE.predict(DOMAIN, listed.population), rtol=1e-9
    )
    assert listed.seconds[0] < measured.min()
    digests = digests_of(DOMAIN, listed.population)
    assert len(set(digests)) == len(digests)
    assert not set(digests) & set(digests_of(DOMAIN, parents))


def test_refinements_inherit_the_level_and_half_of_what_is_beyond_it() -> None:
    off = np.array([1.0, 1.21, 1.0, 0.81])
    np.testing.assert_allclose(child_scale(2.0 * off), 2.0 * np.array([1.0, 1.1, 1.0, 0.9]))


def test_trials_correct_the_costs_that_refinements_are_searched_with() -> None:
    rounds = tuned(replace(SETTINGS, budget=16), 0.1)
    assert any(p.candidate.origin == "refined" for p in rounds[1])
    store = MemoryStore()
    store.propose(rounds[0])
    pool = TablePool(lambda strategy: 3.0 * by_timeline(strategy))
    run_pending(DOMAIN, pool, store, SETTINGS, lambda event: None)
    fastest = [row for row in rank_measured(store.proposals(), store.trials()) if row.step_seconds]
    searched = Searched.after(DOMAIN, Doubtful(0.1), fastest, SETTINGS)
    assert searched.calibrated.cluster != DOMAIN.cluster
    assert (np.diff(searched.step_seconds) >= 0).all()
    assert len(searched.parents) == len(searched.step_seconds) == len(fastest) - 1  # without DDP
    off = replace(SETTINGS, refined_share=0.0)
    assert Searched.after(DOMAIN, Doubtful(0.1), fastest, off).calibrated is DOMAIN


def test_refined_designs_that_do_not_fit_the_devices_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    designs = known_designs(DOMAIN, Space(), TIMELINE)
    found = with_refined(DOMAIN, Space(), TIMELINE, designs, 0)
    assert any(each.origin.endswith("_refined") for each in found)
    nothing = np.zeros(0, dtype=np.int64)
    monkeypatch.setattr(design_candidates, "fitting_rows", lambda *given: nothing)
    assert with_refined(DOMAIN, Space(), TIMELINE, designs, 0) == designs
