"""Collecting a dataset: what is measured, stopping and going on, repeating."""

import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from autosync.cancellation import check_cancelled
from autosync.cluster.cluster_file import save_cluster
from autosync.errors import AutosyncError, InvalidInput
from autosync.search.collect.collection import collect
from autosync.search.collect.collection_log import (
    CONTROL,
    CollectedStrategy,
    CollectionLog,
    PassKey,
)
from autosync.search.collect.collection_passes import OccasionPasses, strategies_of
from autosync.search.collect.collection_plan import CollectionPlan, CollectionTarget
from autosync.simulator.message_digests import digests_of_strategies
from autosync.simulator.runtime_dataset import load_dataset, read_trials
from autosync.trials.contract import TrialRequest, TrialResult, Workload
from autosync.trials.launchers.local_launcher import LocalLauncher
from autosync.trials.testbed.self_check import InaccurateLink
from tests.domains import grid_cluster
from tests.long_parameters import long_after
from tests.search.collect.scripted_launcher import (
    COUNT,
    DOMAIN,
    ScriptedLauncher,
    prepared,
    silent,
    steady,
)
from tests.search.killed import Killed

COLLECTION = "autosync.search.collect.collection"


def _key(number: int, one: CollectedStrategy) -> PassKey:
    return PassKey(DOMAIN.id, 1, number, one.strategy.id)


def _result() -> TrialResult:
    return TrialResult("before", (0.1,), 0.1, 0.0, None, "scripted", 1.0, 1.0)


def test_every_strategy_is_measured_in_two_passes_of_different_order(tmp_path: Path) -> None:
    launcher = ScriptedLauncher(steady)
    collect(prepared(tmp_path), tmp_path, launcher, silent)
    control = launcher.ran[20]
    trials = read_trials(tmp_path)
    measured = trials[trials["pass"] > 0]
    assert sorted(measured["pass"]) == [1] * COUNT + [2] * COUNT
    assert measured.groupby("pass")["strategy_id"].nunique().tolist() == [COUNT, COUNT]
    first, second = launcher.ran[:20], launcher.ran[26 + 1 : 26 + 1 + 20]
    assert control not in second[:1]
    assert first != second
    assert set(trials[trials["pass"] == CONTROL]["strategy_id"]) == {control}
    assert launcher.closed == 1
    [domain] = load_dataset(tmp_path)
    assert (len(domain), domain.failed, domain.noise) == (COUNT, 0, 0.0)


class Unsteady(ScriptedLauncher):
    """Links are off the file at the first openings."""

    off = 2

    def open(self, workload: Workload) -> ScriptedLauncher:
        if self.off:
            self.off -= 1
            raise InaccurateLink("the link carries 283 Mbit/s.", thing="link", value=-0.051)
        return self


def test_links_that_are_off_for_a_moment_do_not_end_a_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{COLLECTION}.PAUSE_SECONDS", 0.0)
    lines: list[str] = []
    launcher = Unsteady(steady)
    plan = prepared(tmp_path)
    collect(plan, tmp_path, launcher, lines.append)
    assert len(read_trials(tmp_path)["strategy_id"].unique()) == COUNT
    assert [text for text in lines if "283 Mbit/s" in text][1].endswith("4 times at most.")
    launcher.off = 99
    with pytest.raises(InaccurateLink):
        collect(replace(plan, seed=4, strategies=COUNT + 1), tmp_path, launcher, silent)


def test_a_third_pass_where_two_disagree_and_its_median_counts(tmp_path: Path) -> None:
    slow: Counter[str] = Counter()

    def sometimes_slow(request: TrialRequest, number: int) -> float:
        identity = request.bundle.strategy.id
        slow[identity] += 1
        doubtful = identity[-1] in "01234" and slow[identity] == 1
        return steady(request, number) * (1.5 if doubtful else 1.0)

    launcher = ScriptedLauncher(sometimes_slow)
    plan = prepared(tmp_path)
    collect(plan, tmp_path, launcher, silent)
    trials = read_trials(tmp_path)
    passes = trials[trials["pass"] > 0].groupby("strategy_id")["pass"].max()
    doubtful = {identity for identity in passes.index if identity[-1] in "01234"}
    assert 0 < len(doubtful) < COUNT
    control = set(trials[trials["pass"] == CONTROL]["strategy_id"])
    thrice = {identity for identity, last in passes.items() if last == 3}
    assert thrice - control == doubtful - control
    [domain] = load_dataset(tmp_path)
    unhindered = [0.1 + int(identity[:4], 16) / 1e6 for identity in passes.index]
    assert domain.label_seconds == pytest.approx(unhindered)


@pytest.mark.parametrize("looks", range(3))
def test_a_collection_may_be_stopped_before_its_first_trial(looks: int, tmp_path: Path) -> None:
    left = iter([False] * looks)
    launcher = ScriptedLauncher(steady)
    collect(prepared(tmp_path), tmp_path, launcher, silent, stopped=lambda: next(left, True))
    assert launcher.ran == []


@pytest.mark.parametrize("dies_after", long_after(2, [20, 51, 0, 1, 21]))
def test_a_killed_collection_goes_on_where_it_stopped(tmp_path: Path, dies_after: int) -> None:
    plan = prepared(tmp_path)
    dying = ScriptedLauncher(steady, dies_after)
    with pytest.raises(Killed):
        collect(plan, tmp_path, dying, silent)
    going_on = ScriptedLauncher(steady)
    collect(plan, tmp_path, going_on, silent)
    trials = read_trials(tmp_path)
    measured = trials[trials["pass"] > 0]
    assert len(measured) == 2 * COUNT
    assert not measured.duplicated(["strategy_id", "occasion", "pass"]).any()
    assert len(trials) == len(dying.ran) + len(going_on.ran)
    collect(plan, tmp_path, launcher := ScriptedLauncher(steady), silent)
    assert launcher.ran == []


def killed(folder: Path, dies_after: int) -> CollectionPlan:
    """The plan of a collection that died."""
    plan = prepared(folder)
    with pytest.raises(Killed):
        collect(plan, folder, ScriptedLauncher(steady, dies_after), silent)
    return plan


def test_a_line_that_a_crash_tore_is_measured_again(tmp_path: Path) -> None:
    plan, log = killed(tmp_path, 7), tmp_path / "log.jsonl"
    log.write_bytes(log.read_bytes()[:-9])
    collect(plan, tmp_path, going_on := ScriptedLauncher(steady), silent)
    assert (read_trials(tmp_path)["pass"] > 0).sum() == 2 * COUNT
    assert len(going_on.ran) >= 2 * COUNT - 6


def test_a_damaged_log_is_refused_by_line(tmp_path: Path) -> None:
    killed(tmp_path, 7)
    log = tmp_path / "log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(lines[0] + b"nonsense\n" + b"".join(lines[1:]))
    with pytest.raises(InvalidInput, match="line 2 of"):
        CollectionLog(tmp_path)


def test_trials_beside_a_drifted_control_are_measured_again(tmp_path: Path) -> None:
    """The machine is slower from the sixth trial of the third block to the end of the fourth."""
    plan = prepared(tmp_path)
    plan = CollectionPlan(plan.domains, strategies=60, seed=3)
    lines: list[str] = []

    def slow_later(request: TrialRequest, number: int) -> float:
        return steady(request, number) * (1.2 if 69 <= number < 86 else 1.0)

    collect(plan, tmp_path, launcher := ScriptedLauncher(slow_later), lines.append)
    assert sum("drifted: 20 of them" in line for line in lines) == 1
    trials = read_trials(tmp_path)
    measured = trials[trials["pass"] > 0]
    assert not measured.duplicated(["strategy_id", "occasion", "pass"]).any()
    assert (measured["pass"] < 3).sum() == 120
    assert len(launcher.ran) == len(trials) + 20
    [domain] = load_dataset(tmp_path)
    assert domain.noise == 0.0


def test_second_occasions_tell_the_noise(tmp_path: Path) -> None:
    plan = prepared(tmp_path, occasions=2)

    def slower_later(request: TrialRequest, number: int) -> float:
        return steady(request, number) * (1.02 if number >= 2 * COUNT + 4 else 1.0)

    collect(plan, tmp_path, ScriptedLauncher(slower_later), silent)
    [domain] = load_dataset(tmp_path)
    assert domain.second_seconds is not None
    assert domain.second_seconds == pytest.approx(1.02 * domain.step_seconds)


@pytest.fixture
def costs_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes of the scripted cluster find another than that of DOMAIN."""
    found = replace(DOMAIN.cluster, name="as probed")
    probed = SimpleNamespace(cluster=found)
    monkeypatch.setattr(f"{COLLECTION}.probe_costs", lambda *_, **__: probed)
    monkeypatch.setattr(f"{COLLECTION}.domain_of", lambda _: DOMAIN)


@pytest.mark.usefixtures("costs_found")
@pytest.mark.parametrize("dies_after", long_after(1, [7, 0, 2 * COUNT - 1]))
def test_a_new_collection_replaces_the_old_one_when_it_is_complete(
    tmp_path: Path, dies_after: int
) -> None:
    plan = prepared(tmp_path)
    collect(plan, tmp_path, ScriptedLauncher(steady), silent)
    dying = ScriptedLauncher(steady, dies_after)
    with pytest.raises(Killed):
        collect(plan, tmp_path, dying, silent, again=["small"])
    assert DOMAIN.id in set(read_trials(tmp_path)["domain"])

    going_on = ScriptedLauncher(steady)
    collect(plan, tmp_path, going_on, silent, again=["small"])
    [domain] = load_dataset(tmp_path)
    assert domain.domain.id != DOMAIN.id
    assert len(read_trials(tmp_path)) == len(dying.ran) + len(going_on.ran)
    assert [file.stem for file in (tmp_path / "domains").iterdir()] == [domain.domain.id]
    assert [file.name for file in (tmp_path / "targets").iterdir()] == ["small.json"]

    collect(plan, tmp_path, idle := ScriptedLauncher(steady), silent)
    assert idle.ran == []


def test_passes_at_other_scales_are_not_mixed(tmp_path: Path) -> None:
    plan = prepared(tmp_path)
    collect(plan, tmp_path, ScriptedLauncher(steady), silent)
    slower = replace(plan.domains[0], time_scale="4")
    more = CollectionPlan((slower,), strategies=COUNT + 1, seed=3)
    with pytest.raises(InvalidInput, match="small was measured at s = 1, k = 1") as refused:
        collect(more, tmp_path, ScriptedLauncher(steady), silent)
    assert "--again small" in refused.value.remedy


class Shaped(ScriptedLauncher):
    """Its pool is on other links."""

    name = "testbed (4 nodes)"


def test_passes_by_other_launchers_are_not_mixed(tmp_path: Path) -> None:
    """As where a collection begins as root, and goes on without."""
    plan = prepared(tmp_path)
    collect(plan, tmp_path, ScriptedLauncher(steady), silent)
    more, launcher = replace(plan, strategies=COUNT + 1), Shaped(steady)
    with pytest.raises(InvalidInput, match="by launcher scripted; this is testbed") as refused:
        collect(more, tmp_path, launcher, silent)
    assert "--launcher scripted" in refused.value.remedy
    assert (launcher.ran, launcher.closed) == ([], 1)


def test_a_strategy_that_fails_is_stored_with_its_reason(tmp_path: Path) -> None:
    lost = strategies_of(DOMAIN, COUNT, 3)[-1].strategy.id

    def failing(request: TrialRequest, number: int) -> float | None:
        return None if request.bundle.strategy.id == lost else steady(request, number)

    collect(prepared(tmp_path), tmp_path, ScriptedLauncher(failing), silent)
    trials = read_trials(tmp_path)
    errors = trials[trials["strategy_id"] == lost]["error"].tolist()
    assert errors == ["crashed: the worker fell over"] * 2
    [domain] = load_dataset(tmp_path)
    assert (len(domain), domain.failed) == (COUNT - 1, 1)


def test_failed_and_loaded_trials_are_measured_once_more(tmp_path: Path) -> None:
    of_name = {each.origin: each.strategy.id for each in strategies_of(DOMAIN, COUNT, 3)}
    failed, loaded = of_name["byteps"], of_name["byteps_least_busy_link"]  # neither is a control
    ran: Counter[str] = Counter()

    class Passing(ScriptedLauncher):
        def run(self, request: TrialRequest) -> TrialResult:
            identity = request.bundle.strategy.id
            ran[identity] += 1
            if identity == failed and ran[identity] == 1:
                return replace(super().run(request), step_seconds=None, iteration_seconds=())
            load = 0.5 if identity == loaded else 0.0
            return replace(super().run(request), load=load)

    collect(prepared(tmp_path), tmp_path, Passing(steady), silent)
    assert ran[failed] == 3
    assert ran[loaded] == 4, "both passes of it again, once"
    [domain] = load_dataset(tmp_path)
    assert (len(domain), domain.failed) == (COUNT, 0)


def test_a_cluster_that_fails_ends_the_collection_and_blames_no_strategy(tmp_path: Path) -> None:
    plan = prepared(tmp_path)

    def lost(request: TrialRequest, number: int) -> float | None:
        return steady(request, number) if number < 10 else None

    with pytest.raises(AutosyncError, match=r"small: the control,.* crashed: the worker"):
        collect(plan, tmp_path, ScriptedLauncher(lost), silent)
    collect(plan, tmp_path, ScriptedLauncher(steady), silent)
    assert read_trials(tmp_path).query("`pass` > 0")["error"].isna().all()
    [domain] = load_dataset(tmp_path)
    assert (len(domain), domain.failed) == (COUNT, 0)


def test_a_crash_after_the_tables_are_written_counts_nothing_twice(tmp_path: Path) -> None:
    """The log is then read on top of the tables that hold it already."""
    plan = killed(tmp_path, 25)
    log = (tmp_path / "log.jsonl").read_bytes()
    collect(plan, tmp_path, ScriptedLauncher(steady), silent)
    whole = read_trials(tmp_path)
    (tmp_path / "log.jsonl").write_bytes(log)
    CollectionLog(tmp_path).checkpoint([DOMAIN])
    assert len(read_trials(tmp_path)) == len(whole)


def test_more_strategies_later_keep_those_measured_before() -> None:
    few = [each.strategy.id for each in strategies_of(DOMAIN, 30, 3)]
    many = [each.strategy.id for each in strategies_of(DOMAIN, 50, 3)]
    assert many[:30] == few
    assert len(set(many)) == 50


def test_a_collection_stays_whole_when_today_s_sampler_draws_otherwise(tmp_path: Path) -> None:
    """What another sampler drew before counts; asked for more, only the new ones are measured."""
    plan = prepared(tmp_path)
    elsewhere = CollectionLog(tmp_path)
    drawn_before = strategies_of(DOMAIN, COUNT, 99)[-5:]
    for number in (1, 2):
        for one in drawn_before:
            elsewhere.record(_key(number, one), one, 1.0, _result())
    collect(plan, tmp_path, first := ScriptedLauncher(steady), silent)
    control = first.ran[20]
    assert len(set(first.ran) - {control}) in (COUNT - 5, COUNT - 6)
    collect(plan, tmp_path, again := ScriptedLauncher(steady), silent)
    assert again.ran == []
    [domain] = load_dataset(tmp_path)
    assert len(domain) == COUNT
    more = replace(plan, strategies=COUNT + 2)
    collect(more, tmp_path, last := ScriptedLauncher(steady), silent)
    assert sorted(Counter(last.ran).values()) == [2, 2, 2], "two of them, and the controls"


def test_no_two_of_a_collection_send_the_same_messages() -> None:
    chosen = [each.strategy for each in strategies_of(DOMAIN, 50, 3)]
    assert len(digests_of_strategies(DOMAIN, chosen)) == 50
    more = strategies_of(DOMAIN, 60, 3, strategies_of(DOMAIN, 20, 3), strategies_of(DOMAIN, 50, 8))
    other = {each.strategy.id for each in strategies_of(DOMAIN, 50, 8)}
    assert len(more) == 60
    assert not other & {each.strategy.id for each in more[20:]}


def test_passes_keep_their_order_beside_more_strategies(tmp_path: Path) -> None:
    log = CollectionLog(tmp_path)
    few, many = (strategies_of(DOMAIN, count, 3) for count in (20, 40))
    of_few, of_many = (
        [key for key, _ in OccasionPasses(DOMAIN.id, 1, tuple(each), 3).pending(log)]
        for each in (few, many)
    )
    assert of_few == [key for key in of_many if key in of_few]
    assert [key.strategy_id for key in of_few] != [each.strategy.id for each in few]


def test_stopping_is_asked_before_every_trial(tmp_path: Path) -> None:
    launcher = ScriptedLauncher(steady)
    collect(prepared(tmp_path), tmp_path, launcher, silent, lambda: len(launcher.ran) >= 5)
    assert len(launcher.ran) == 5 + 1
    assert CollectionLog(tmp_path).control_seconds(DOMAIN.id) != []
    assert launcher.closed == 1


def test_a_second_collection_into_a_folder_is_refused_meanwhile(tmp_path: Path) -> None:
    """At its checkpoint each would drop what the other has appended to the log."""
    plan = prepared(tmp_path)

    def beside(request: TrialRequest, number: int) -> float:
        with pytest.raises(InvalidInput, match="another process collects into"):
            collect(plan, tmp_path, ScriptedLauncher(steady), silent)
        return steady(request, number)

    launcher = ScriptedLauncher(beside)
    collect(plan, tmp_path, launcher, silent, lambda: len(launcher.ran) >= 1)
    assert launcher.ran
    collect(plan, tmp_path, ScriptedLauncher(steady), silent)
    assert (read_trials(tmp_path)["pass"] > 0).sum() == 2 * COUNT


def test_real_workers_are_measured(tmp_path: Path) -> None:
    """Probed and measured on this machine's loopback, whatever it takes."""
    save_cluster(grid_cluster(3), tmp_path / "three.yaml")
    target = CollectionTarget("real", "bert_3l", str(tmp_path / "three.yaml"), 20.0, "1/256")
    plan = CollectionPlan((target,), strategies=3, seed=1)
    collect(plan, tmp_path, LocalLauncher(repeats=0), silent)
    [domain] = load_dataset(tmp_path)
    assert (len(domain), domain.failed) == (3, 0)
    assert {cost.residual is None for cost in domain.domain.cluster.costs} == {False}
    key = PassKey(domain.domain.id, 1, 2, strategies_of(domain.domain, 3, 1)[0].strategy.id)
    assert key in CollectionLog(tmp_path)


@pytest.mark.usefixtures("costs_found")
def test_a_stop_does_not_wait_for_a_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured of other domains before is in the dataset, and the probe begins anew."""
    plan, began = prepared(tmp_path), threading.Event()
    other = replace(plan.domains[0], name="other")
    both = replace(plan, domains=(*plan.domains, other))

    def endless(*_: object, **__: object) -> None:
        began.set()
        while True:
            check_cancelled()
            time.sleep(0.01)

    with monkeypatch.context() as patched:
        patched.setattr(f"{COLLECTION}.probe_costs", endless)
        collect(both, tmp_path, ScriptedLauncher(steady), silent, began.is_set)
    assert len(read_trials(tmp_path)) == 2 * COUNT + 4
    assert not (tmp_path / "targets" / "other.json").exists()
    collect(both, tmp_path, ScriptedLauncher(steady), silent)
    assert (tmp_path / "targets" / "other.json").exists()
