"""Picks of a dataset: who chose them, from what, and that they survive a kill."""

import shutil
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autosync.documents import from_json, to_json
from autosync.errors import InvalidInput
from autosync.population import encode
from autosync.search.collect.collection import CollectionRun, collect
from autosync.search.collect.collection_log import PICK_ORIGINS, CollectedStrategy, CollectionLog
from autosync.search.collect.collection_plan import CollectionPlan, CollectionTarget
from autosync.simulator.message_digests import digests_of
from autosync.simulator.runtime_dataset import load_dataset, read_trials
from autosync.strategy import Strategy
from benchmarks.picks import collect_picks
from tests.domains import chain_graph, grid_cluster
from tests.domains import domain_of as small_domain
from tests.search.collect.scripted_launcher import DOMAIN, ScriptedLauncher, silent, steady
from tests.search.killed import Killed

SHAPES = tuple((64, 1 << (7 - i % 3)) for i in range(12))
PICKED = small_domain(chain_graph(SHAPES), grid_cluster(3, gbps=0.1))
"""Of enough variables for its strategies to differ in their messages."""
BASE, PICKS, ROUNDS = 20, 12, 2


def prepared(folder: Path) -> CollectionPlan:
    """Both domains were probed before."""
    (folder / "targets").mkdir(parents=True)
    for name, domain in (("source", DOMAIN), ("picked", PICKED)):
        (folder / "targets" / f"{name}.json").write_text(to_json(domain))
    return prepared_plan()


def prepared_plan() -> CollectionPlan:
    """A plan of a source and of a domain with picks."""
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


def pick(
    folder: Path, launcher: ScriptedLauncher, stopped: Callable[[], bool] = lambda: False
) -> None:
    plan = prepared_plan()
    run = CollectionRun(plan, folder, CollectionLog(folder), launcher, silent, stopped)
    collect_picks(run, plan.domains)


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All strategies but the picks."""
    folder = tmp_path_factory.mktemp("collected")
    collect(prepared(folder), folder, ScriptedLauncher(steady), silent)
    return folder


@pytest.fixture(scope="module")
def whole(collected: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the picks, chosen without an interruption."""
    folder = tmp_path_factory.mktemp("whole")
    shutil.copytree(collected, folder, dirs_exist_ok=True)
    pick(folder, ScriptedLauncher(steady))
    return folder


@pytest.fixture
def folder(collected: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(collected, tmp_path / "collected"))


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


@pytest.mark.parametrize("dies_after", [0, 7, 16])
def test_a_killed_round_goes_on_with_the_same_picks(
    folder: Path, whole: Path, dies_after: int
) -> None:
    with pytest.raises(Killed):
        pick(folder, ScriptedLauncher(steady, dies_after))
    pick(folder, ScriptedLauncher(steady))
    assert picks_of(folder) == picks_of(whole)
    collect(prepared_plan(), folder, idle := ScriptedLauncher(steady), silent)
    pick(folder, idle)
    assert idle.ran == []


def test_a_stop_keeps_the_picks_that_wait_for_their_pass(folder: Path, whole: Path) -> None:
    launcher = ScriptedLauncher(steady)
    pick(folder, launcher, lambda: len(launcher.ran) >= 2)
    assert (folder / "log.jsonl").exists()
    measured = picks_of(folder)
    assert len(measured) == 2
    pick(folder, ScriptedLauncher(steady))
    assert measured < picks_of(folder) == picks_of(whole)


def test_a_source_that_was_not_measured_is_named(tmp_path: Path) -> None:
    plan = prepared(tmp_path)
    collect(replace(plan, domains=plan.domains[:1]), tmp_path, ScriptedLauncher(steady), silent)
    with pytest.raises(InvalidInput, match="need the strategies of source") as refused:
        pick(tmp_path, ScriptedLauncher(steady))
    assert "collect --domain source" in (refused.value.remedy or "")


def test_picks_are_shared_evenly_or_refused(folder: Path) -> None:
    uneven = replace(prepared_plan().domains[0], picks=10)
    run = CollectionRun(
        prepared_plan(), folder, CollectionLog(folder), ScriptedLauncher(steady), silent, bool
    )
    with pytest.raises(InvalidInput, match=r"picked\.picks 10 is no multiple of 6"):
        collect_picks(run, [uneven])


def test_a_stop_does_not_wait_for_a_choice(
    folder: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it store half of one."""
    began, release = threading.Event(), threading.Event()

    def endless(*_: object) -> list[CollectedStrategy]:
        began.set()
        release.wait()
        return []

    with monkeypatch.context() as patched:
        patched.setattr("benchmarks.picks.choose_round", endless)
        pick(folder, stopped := ScriptedLauncher(steady), began.is_set)
    release.set()
    assert stopped.ran == []
    assert picks_of(folder) == set()
    pick(folder, ScriptedLauncher(steady))
    assert picks_of(folder) == picks_of(whole)
