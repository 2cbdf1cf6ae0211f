"""Answers of the contest at slower time scales: who runs, what is kept, what the table says."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from autosync.errors import AutosyncError
from autosync.trials.contract import Workload
from benchmarks.contest import live_tables, time_scales
from benchmarks.contest.live_contest import final_line
from benchmarks.contest.live_records import stored_strategies
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
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A contest of 12 trials that is over; its tunings' own files are gone, as in a clone."""
    monkeypatch.setattr(live_tables, "MOST", 12)
    monkeypatch.setattr(live_tables, "COUNTS", (12,))
    monkeypatch.setattr(time_scales, "MOST", 12)
    here = contest(tmp_path, trials=12)
    brought = {each.strategy.id for each in final_line(here)}
    for file in (tmp_path / "live").glob("*.autosync_*.jsonl"):
        file.unlink()
    assert stored_strategies(tmp_path, GIVEN.name).keys() <= brought
    assert stored_strategies(tmp_path, GIVEN.name)
    return tmp_path


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
    (result,) = live_tables.contest_results(folder)
    lines = time_scales.scales_table(folder).splitlines()
    assert [line.split(" | ")[1] for line in lines[2:]] == ["2", "4"]
    assert f"| {result.share_of_limit(12):.1%} |" in lines[2]
    words = time_scales.average_words(folder)
    # the contest ran at k = 1, these at 2 and 4
    assert f"{result.share_of_limit(12):.1%} 2 times slower" in words
    assert "4 times slower" in words
    assert "without" not in words


def test_a_domain_without_a_kept_answer_is_named(folder: Path) -> None:
    (folder / "live" / f"{GIVEN.name}.strategies.jsonl").unlink()
    with pytest.raises(AutosyncError, match="whose strategy was kept") as refused:
        time_scales.measure(folder, GIVEN, (1.0,), 1)
    assert refused.value.value == GIVEN.name
