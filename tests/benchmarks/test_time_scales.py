"""Answers of the contest at slower time scales: who runs, what is kept, what the table says."""

import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from autosync.errors import AutosyncError
from autosync.trials.contract import Workload
from benchmarks.contest import tables, time_scales
from benchmarks.contest.contest_records import (
    ContestFacts,
    ContestFile,
    scale_rows,
    stored_strategies,
    trial_rows,
)
from benchmarks.contest.live_contest import best_rows, final_line
from benchmarks.contest.time_scales import ScaleResult
from tests.benchmarks.test_live_contest import DOMAIN, GIVEN, PredictingPool, contest


class AnsweringLauncher:
    """Opens one pool, whatever the workload; knows the time scales it was asked for."""

    def __init__(self, pool: PredictingPool) -> None:
        self.pool = pool
        self.asked: list[float] = []

    def __call__(self, workloads: tuple[str, ...]) -> "AnsweringLauncher":
        return self

    def open(self, workload: Workload) -> "nullcontext[PredictingPool]":
        self.asked.append(workload.time_scale)
        return nullcontext(self.pool)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A contest of 12 trials that is over; its tunings' own files are gone, as in a clone."""
    here = contest(tmp_path, trials=12)
    brought = {each.strategy.id for each in final_line(here)}
    shutil.rmtree(tmp_path / "tunings")
    assert stored_strategies(tmp_path, GIVEN.name).keys() <= brought
    assert stored_strategies(tmp_path, GIVEN.name)
    return tmp_path


@pytest.mark.long
def test_the_answer_runs_beside_ddp_and_the_best_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = replace(GIVEN, time_scale="2")
    pool = PredictingPool()
    launcher = AnsweringLauncher(pool)
    monkeypatch.setattr(time_scales, "TestbedLauncher", launcher)
    line = time_scales.racers(folder, given, DOMAIN)
    assert list(line)[:2] == ["ddp", "autosync"]
    found = time_scales.measure(folder, given, (1.0, 2.0), 2)
    assert launcher.asked == [2.0, 4.0]
    assert len(found) == len(line) * 2 * 2
    assert {(r.role, r.time_scale) for r in found} == {(n, k) for n in line for k in (2.0, 4.0)}
    ran = len(pool.ran)
    assert time_scales.measure(folder, given, (1.0, 2.0), 2) == found
    assert len(pool.ran) == ran
    (result,) = tables.contest_results(folder)
    scaled = time_scales.scale_results(folder)
    lines = time_scales.scales_table(scaled).splitlines()
    assert [line.split(" | ")[1] for line in lines[2:]] == ["2", "4"]
    assert f"| {result.share_of_limit(12):.0%} |" in lines[2]


@pytest.mark.long
def test_tables_are_of_the_records_that_there_are(folder: Path, tmp_path: Path) -> None:
    assert "holds no records" in tables.contest_tables(tmp_path / "nothing")
    assert f"| {GIVEN.name} |" in tables.contest_tables(folder)


def test_averages_name_the_domains_that_are_not_in_them() -> None:
    facts = ContestFacts("one", 1.0, 1.0, 2.0, 0.08, 0.08, 0.09, "schedule", "its id", "here")
    other = replace(facts, name="other", time_scale=1.0)

    def at(facts: ContestFacts, time_scale: float, share: float) -> ScaleResult:
        seconds = {"ddp": [1.0], "autosync": [facts.limit_seconds / share]}
        return ScaleResult(facts, time_scale, seconds)

    results = [at(facts, 2.0, 0.9), at(facts, 4.0, 0.96), at(other, 1.0, 0.8)]
    words = time_scales.average_words(results)
    assert words.endswith(": 85% at their own k; 96% 2 times slower (without other).")
    assert time_scales.average_words([]) == ""


def test_what_stays_is_told_from_what_shared_cores_take() -> None:
    facts = ContestFacts("one", 1.0, 2.0, 2.0, 0.08, 0.08, 0.09, "schedule", "its id", "here")
    seconds = {2.0: 1.0 + 0.02 + 0.08, 4.0: 1.0 + 0.02 + 0.04, 8.0: 1.0 + 0.02 + 0.02}
    results = [
        ScaleResult(facts, k, {"ddp": [1.0], "autosync": [facts.limit_seconds * times]})
        for k, times in seconds.items()
    ]
    alone = ScaleResult(replace(facts, name="alone"), 2.0, results[0].seconds)
    table = time_scales.parting_table([*results, alone]).splitlines()
    assert table[2:] == ["| one | 10% | 2% | 8% |"]


@pytest.mark.long
def test_a_domain_without_a_kept_answer_is_named(folder: Path) -> None:
    (folder / "strategies" / f"{GIVEN.name}.jsonl").unlink()
    with pytest.raises(AutosyncError, match="whose strategy was kept") as refused:
        time_scales.measure(folder, GIVEN, (1.0,), 1)
    assert refused.value.value == GIVEN.name


@pytest.mark.long
def test_rows_of_another_answer_are_not_mixed_with_those_of_this_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_scales, "TestbedLauncher", AnsweringLauncher(PredictingPool()))
    first, *_ = time_scales.measure(folder, GIVEN, (1.0,), 1)
    time_scales.measure(folder, GIVEN, (1.0,), 2)
    scale_rows(folder).add(GIVEN.name, replace(first, strategy_id=None))  # as in older records
    time_scales.measure(folder, GIVEN, (1.0,), 2)
    scale_rows(folder).add(GIVEN.name, replace(first, strategy_id="another"))
    with pytest.raises(AutosyncError, match="measured of another answer"):
        time_scales.measure(folder, GIVEN, (1.0,), 2)


@pytest.mark.long
def test_the_answer_is_told_from_finalists_of_the_same_label(folder: Path) -> None:
    """Even from one whose trial was faster, and which was slower in the repeats."""
    file = ContestFile(folder, GIVEN.name)
    (result,) = tables.contest_results(folder)
    answer = result.answers["autosync", 12]
    finalists = best_rows(file.of("search", "autosync_12"), 12)
    (own,) = (row for row in finalists if row.key == answer.key)
    (other,) = (row for row in finalists if row.key != answer.key)
    faster, slower = 0.5 * answer.step_seconds, 2.0 * answer.step_seconds
    (folder / "rows" / f"{GIVEN.name}.jsonl").unlink()
    for row in file.rows:
        seconds = row.step_seconds
        if row.key == other.key:
            seconds = faster if row.kind == "search" else slower
        label = "refined" if row.competitor == "autosync_12" else row.label
        trial_rows(folder).add(GIVEN.name, replace(row, label=label, step_seconds=seconds))
    line = time_scales.racers(folder, GIVEN, DOMAIN)
    assert line["autosync"].label == "refined"
    assert line["autosync"].strategy.id == own.strategy_id


def test_where_ddp_is_at_its_limit_no_share_of_the_gap_is_said() -> None:
    facts = ContestFacts("one", 1.0, 1.0, 2.0, 0.08, 0.08, 0.1, "schedule", "its id", "here")
    shown = [
        time_scales.scales_table([ScaleResult(facts, 2.0, {"ddp": [ddp], "autosync": [0.1005]})])
        for ddp in (0.11, 0.1008, 0.0999)
    ]
    assert [table.splitlines()[-1].split(" | ")[7] for table in shown] == ["95%", "–", "–"]
