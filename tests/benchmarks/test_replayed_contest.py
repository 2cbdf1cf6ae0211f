"""Searches replayed on a pool of invented measurements."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autosync.population import decode, encode
from autosync.search.designs.design_table import BUILDERS
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.runtime_dataset import SAMPLED, MeasuredDomain
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from benchmarks.contest import contest_page, replayed_contest
from benchmarks.contest.contest_pools import ContestPool, contested, pool_of
from benchmarks.contest.replayed_contest import (
    Match,
    ReplayedSearch,
    file_of,
    play,
    play_domain,
    read_searches,
)
from benchmarks.contest.replayed_searchers import ABLATIONS, Ablation, Searcher, stand_ins, taught
from benchmarks.contest.replayed_tables import hit_rate, regret, regret_table, statistics_table
from tests.domains import chain_graph, domain_of, grid_cluster

DESIGNED = ("ddp", "ps_load_balanced", "all_reduce_per_variable", "dear", "ps_one_server")
QUICK = [each for each in ABLATIONS if not each.networks]
BY_NAME = {each.name: each for each in ABLATIONS}


def pool(name: str, seed: int, noise: float = 0.0) -> ContestPool:
    """A pool whose seconds are the timeline's, with noise."""
    shapes = ((64, 2000), (500, 640), (128, 640), (1280,), (100, 1280))
    graph = replace(chain_graph(shapes), name=name)
    domain = domain_of(graph, grid_cluster(4, gbps=0.1 + 0.05 * seed))
    designs = [BUILDERS[design].build(domain) for design in DESIGNED]
    drawn = sample(domain, Space(whole_below_bytes=0), 0, 60, seed)
    everything = [*designs, *(decode(drawn, i, domain) for i in range(len(drawn)))]
    population = encode(everything, domain)
    rng = np.random.default_rng(seed)
    true = TimelineSimulator().predict(domain, population)
    one, two = (true * np.exp(noise * rng.standard_normal(len(true))) for _ in range(2))
    origins = (*DESIGNED, *([SAMPLED] * len(drawn)))
    measured = MeasuredDomain(domain, population, one, two, true, 0, origins, (0,) * len(true))
    return pool_of(measured, with_shards=False)


@pytest.fixture(scope="module")
def pools() -> tuple[ContestPool, ...]:
    return pool("one", 0), pool("other", 1, noise=0.01)


@pytest.mark.parametrize("ablation", QUICK, ids=lambda each: each.name)
def test_a_search_tries_its_budget_and_nothing_twice(
    pools: tuple[ContestPool, ...], ablation: Ablation
) -> None:
    searcher = Searcher(ablation, pools[0], taught(ablation, pools[0], pools), {})
    found = play(pools[0], searcher, Match(ablation, False, 20, 1))
    assert len(found.trial_seconds) == 20
    labels = pools[0].trials.step_seconds[~pools[0].designed]
    assert set(found.label_seconds) <= set(labels.tolist())
    again = Searcher(ablation, pools[0], taught(ablation, pools[0], pools), {})
    assert play(pools[0], again, Match(ablation, False, 20, 1)) == found


def test_what_predicts_rightly_finds_the_fastest_at_once(pools: tuple[ContestPool, ...]) -> None:
    exact = BY_NAME["timeline"]
    found = play(pools[0], Searcher(exact, pools[0], None, {}), Match(exact, False, 20, 0))
    there = np.array(found.label_seconds)
    assert found.best_seconds[0] == there.min() == found.reachable_seconds
    assert regret(found, 8) == regret(found, 20) == 0.0


def test_designs_come_first_and_ddp_before_all(pools: tuple[ContestPool, ...]) -> None:
    exact = BY_NAME["timeline"]
    found = play(pools[0], Searcher(exact, pools[0], None, {}), Match(exact, True, 12, 0))
    designed = pools[0].trials.step_seconds[pools[0].designed].tolist()
    assert found.label_seconds[0] == pools[0].seconds_of("ddp")
    first = [seconds in designed for seconds in found.label_seconds]
    assert first.index(False) >= 4
    assert len(first) == 12


def test_a_child_that_was_measured_stands_for_itself(pools: tuple[ContestPool, ...]) -> None:
    rows = np.arange(10, 40)
    wanted = np.array([31, 17, 22])
    picks = stand_ins(pools[0], pools[0].population.take(wanted), rows, 3)
    assert picks.tolist() == wanted.tolist()
    twice = pools[0].population.take(np.array([31, 31]))
    assert len(set(stand_ins(pools[0], twice, rows, 2).tolist())) == 2


def test_the_answer_is_the_best_of_the_three_fastest_in_their_trials() -> None:
    found = ReplayedSearch(
        "d",
        "timeline",
        False,
        60,
        0,
        5,
        (3.0, 1.0, 2.0, 1.5, 9.0),
        (3.1, 2.5, 2.2, 2.4, 0.5),
        2.3,
        1.0,
        2.0,
    )
    assert found.best_seconds == (3.1, 2.5, 2.2, 2.2, 2.2)
    assert regret(found, 60) == pytest.approx(0.1)
    assert hit_rate(found) == pytest.approx(2 / 5)


@pytest.fixture
def small_pools(
    pools: tuple[ContestPool, ...], monkeypatch: pytest.MonkeyPatch
) -> tuple[ContestPool, ...]:
    def given(with_shards: bool) -> tuple[ContestPool, ...]:
        return pools

    monkeypatch.setattr(replayed_contest, "contest_pools", given)
    return pools


def test_what_is_done_is_not_played_again(
    small_pools: tuple[ContestPool, ...], tmp_path: Path
) -> None:
    name = small_pools[0].name
    asked = ["random", "timeline"]
    later = 1e12
    assert play_domain(name, asked, 2, tmp_path, 0.0).endswith("10 of 10 searches left")
    assert play_domain(name, asked, 2, tmp_path, later) == f"{name}: done"
    file = file_of(tmp_path, name)
    before = file.read_text()
    assert play_domain(name, asked, 2, tmp_path, later) == f"{name}: done before"
    kept = before.splitlines(keepends=True)
    file.write_text("".join(kept[:-3]))
    play_domain(name, asked, 2, tmp_path, later)
    assert sorted(file.read_text().splitlines()) == sorted(before.splitlines())


def test_the_page_keeps_what_the_records_do_not_hold(
    small_pools: tuple[ContestPool, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fastest = {e.name: float(e.trials.step_seconds[e.designed].min()) for e in small_pools}
    known = {each.name: (len(each), fastest[each.name]) for each in small_pools}
    monkeypatch.setattr(contest_page, "measured_pools", lambda: known)
    page = tmp_path / "docs" / "contest.md"
    page.parent.mkdir()
    page.write_text("# Old\n\n## Live: tuned baselines\n\nmeasured long ago\n")
    for each in small_pools:
        play_domain(each.name, ["no simulator", "random", "timeline"], 2, tmp_path, 1e12)
    contest_page.write_page(tmp_path, page)
    text = page.read_text()
    assert "measured long ago" in text
    assert contest_page.UNKNOWN[contest_page.LEFTOVER] in text
    searches = read_searches(tmp_path)
    assert regret_table(searches) in text
    assert statistics_table(searches, small_pools[1].name) in text
    for name, seconds in fastest.items():
        assert f"| {name} | {known[name][0]} | {seconds * 1e3:.1f} |" in text
    for picture in ("contest_improvement.svg", "contest_best_so_far.svg"):
        assert (page.parent / "pictures" / picture).read_text().count("<svg") == 1


def test_a_small_pool_is_only_learned_from(pools: tuple[ContestPool, ...]) -> None:
    assert contested(pools) == []
