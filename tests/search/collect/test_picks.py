"""Picks of a collection: who chose them, from what, and that they survive a kill."""

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from autosync.documents import from_json, to_json
from autosync.errors import InvalidInput
from autosync.population import encode
from autosync.search.collect.collected_strategy import PICK_ORIGINS, CollectedStrategy
from autosync.search.collect.collection import collect
from autosync.search.collect.collection_plan import CollectionPlan, CollectionTarget
from autosync.search.collect.pass_runner import PassRunner
from autosync.search.collect.remaining_passes import OccasionPasses
from autosync.simulator.message_digests import digests_of
from autosync.simulator.runtime_dataset import load_dataset, read_trials
from autosync.strategy import Strategy
from tests.domains import chain_graph, grid_cluster
from tests.domains import domain_of as small_domain
from tests.search.collect.scripted_launcher import DOMAIN, ScriptedLauncher, silent, steady
from tests.search.killed import Killed

SHAPES = tuple((64, 1 << (7 - i % 3)) for i in range(12))
PICKED = small_domain(chain_graph(SHAPES), grid_cluster(3, gbps=0.1))
"""Of enough variables for its strategies to differ in their messages."""
BASE, PICKS, ROUNDS = 20, 12, 2
BEFORE_PICKS = 2 * 20 + 2 * 25 + 2 + 4
"""Passes of all other strategies, and their controls."""


def prepared(folder: Path) -> CollectionPlan:
    """A plan of a source and of a domain with picks, both probed before."""
    (folder / "targets").mkdir(parents=True)
    for name, domain in (("source", DOMAIN), ("picked", PICKED)):
        (folder / "targets" / f"{name}.json").write_text(to_json(domain))
    source = CollectionTarget("source", "resnet50", "example-4x1", 1.0, "1")
    picked = replace(source, name="picked", strategies=BASE, picks=PICKS)
    return CollectionPlan(
        (picked, source),
        strategies=25,
        seed=3,
        pick_rounds=ROUNDS,
        pick_sources=("source", "picked"),
        proposals=200,
    )


def picks_of(folder: Path) -> set[tuple[str, str, int, float]]:
    trials = read_trials(folder)
    rows = trials[trials["origin"].isin(PICK_ORIGINS)]
    columns = ["strategy_id", "origin", "round", "predicted_seconds"]
    return set(rows[columns].itertuples(index=False, name=None))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    lines: list[str] = []
    collect(prepared(folder), folder, ScriptedLauncher(steady), lines.append)
    assert any("min left" in line for line in lines)
    return folder


def test_picks_are_chosen_in_turn_and_are_like_nothing_measured(whole: Path) -> None:
    picks = picks_of(whole)
    assert Counter((origin, number) for _, origin, number, _ in picks) == {
        (origin, number): PICKS // ROUNDS // 3
        for origin in PICK_ORIGINS
        for number in range(1, ROUNDS + 1)
    }
    assert all(0 < predicted < 1 for *_, predicted in picks)
    trials = read_trials(whole)
    rest = trials[~trials["origin"].isin(PICK_ORIGINS)]
    assert rest["round"].isna().all()
    assert rest["predicted_seconds"].isna().all()
    passes = trials[trials["origin"].isin(PICK_ORIGINS)]
    assert Counter(passes["pass"]) == {1: PICKS, 2: PICKS}
    assert passes["measured_at"].min() > rest[rest["pass"] > 0]["measured_at"].max()
    domain = next(d for d in load_dataset(whole) if d.domain.id == PICKED.id)
    assert len(domain) == BASE + PICKS
    strategies = {
        identity: from_json(Strategy, text, source="test")
        for identity, text in zip(trials["strategy_id"], trials["strategy"], strict=True)
    }
    picked = {identity for identity, *_ in picks}
    others = set(trials.loc[trials["domain"] == PICKED.id, "strategy_id"]) - picked
    of_picks, of_others = (
        digests_of(PICKED, encode([strategies[identity] for identity in ids], PICKED))
        for ids in (picked, others)
    )
    assert len(set(of_picks)) == PICKS
    assert not set(of_picks) & set(of_others)


@pytest.mark.parametrize("dies_after", [0, 3, 7, 16])
def test_a_killed_round_goes_on_with_the_same_picks(
    tmp_path: Path, whole: Path, dies_after: int
) -> None:
    plan = prepared(tmp_path)
    with pytest.raises(Killed):
        collect(plan, tmp_path, ScriptedLauncher(steady, BEFORE_PICKS + dies_after), silent)
    collect(plan, tmp_path, ScriptedLauncher(steady), silent)
    assert picks_of(tmp_path) == picks_of(whole)
    collect(plan, tmp_path, idle := ScriptedLauncher(steady), silent)
    assert idle.ran == []


def test_picks_that_are_measured_are_not_counted_as_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[int] = []
    run_all = PassRunner.run_all

    def noting(runner: PassRunner, passes: OccasionPasses, later: int = 0) -> None:
        said.append(later)
        run_all(runner, passes, later)

    monkeypatch.setattr(PassRunner, "run_all", noting)
    plan = prepared(tmp_path)
    collect(plan, tmp_path, ScriptedLauncher(steady), silent)
    assert said[0] == 2 * PICKS
    said.clear()
    more = replace(plan.domains[0], strategies=BASE + 1)
    collect(
        replace(plan, domains=(more, plan.domains[1])), tmp_path, ScriptedLauncher(steady), silent
    )
    assert said == [0]


def test_a_stop_keeps_the_picks_that_wait_for_their_pass(tmp_path: Path, whole: Path) -> None:
    plan, launcher = prepared(tmp_path), ScriptedLauncher(steady)
    collect(plan, tmp_path, launcher, silent, lambda: len(launcher.ran) >= BEFORE_PICKS + 2)
    assert (tmp_path / "log.jsonl").exists()
    measured = picks_of(tmp_path)
    assert len(measured) == 2
    collect(plan, tmp_path, ScriptedLauncher(steady), silent)
    assert measured < picks_of(tmp_path) == picks_of(whole)


def test_a_source_that_was_not_measured_is_named(tmp_path: Path) -> None:
    plan = prepared(tmp_path)
    alone = replace(plan, domains=plan.domains[:1])
    with pytest.raises(InvalidInput, match="need the strategies of source") as refused:
        collect(alone, tmp_path, ScriptedLauncher(steady), silent)
    assert "Collect source first" in (refused.value.remedy or "")


def test_picks_are_shared_evenly_or_refused() -> None:
    target = CollectionTarget("uneven", "resnet50", "example-4x1", 1.0, "1", picks=10)
    with pytest.raises(InvalidInput, match=r"uneven\.picks 10 is no multiple of 15"):
        CollectionPlan((target,))


def test_a_stop_does_not_wait_for_a_choice(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it store half of one."""
    plan, began, release = prepared(tmp_path), threading.Event(), threading.Event()

    def endless(*_: object) -> list[CollectedStrategy]:
        began.set()
        release.wait()
        return []

    with monkeypatch.context() as patched:
        patched.setattr("autosync.search.collect.collection.choose_round", endless)
        collect(plan, tmp_path, stopped := ScriptedLauncher(steady), silent, began.is_set)
    release.set()
    assert len(stopped.ran) == BEFORE_PICKS
    assert picks_of(tmp_path) == set()
    collect(plan, tmp_path, ScriptedLauncher(steady), silent)
    assert picks_of(tmp_path) == picks_of(whole)
