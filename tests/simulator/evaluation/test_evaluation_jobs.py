"""An evaluation that is interrupted goes on where it stopped."""

import math
from pathlib import Path

import pytest

from autosync.simulator.evaluation.evaluation_jobs import TableJobs, source_digest
from autosync.simulator.evaluation.pick_tables import PickRow, PickScores

NAN = float("nan")


def row(domain: str, value: float) -> list[PickRow]:
    return [PickRow(domain, "timeline", "none", PickScores(value, 0.1, 0.0, 0.0, 0.0, NAN))]


def fails_at_b(domain: str, value: float) -> list[PickRow]:
    if domain == "b":
        raise KeyboardInterrupt
    return row(domain, value)


JOBS = {"a": ("a", 0.5), "b": ("b", 0.25), "c": ("c", 1 / 3)}


def jobs(folder: Path, told: list[str], stamp: str = "one", processes: int = 1) -> TableJobs:
    return TableJobs("picks", folder, stamp, processes, told.append)


def test_what_was_found_before_an_interrupt_is_not_done_again(tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        jobs(tmp_path, told).results(list[PickRow], fails_at_b, JOBS)
    assert [line.partition(", after")[0] for line in told] == ["picks: a, 1 of 3"]
    told.clear()
    found = jobs(tmp_path, told).results(list[PickRow], row, JOBS)
    assert [line.partition(", after")[0] for line in told] == [
        "picks: b, 2 of 3",
        "picks: c, 3 of 3",
    ]
    assert [rows[0].domain for rows in found] == ["a", "b", "c"]
    assert [rows[0].scores.kendall for rows in found] == [0.5, 0.25, 1 / 3]
    assert math.isnan(found[0][0].scores.top_regret)


def test_what_was_found_by_other_code_is_done_again(tmp_path: Path) -> None:
    told: list[str] = []
    jobs(tmp_path, told).results(list[PickRow], row, JOBS)
    told.clear()
    jobs(tmp_path, told, stamp="two").results(list[PickRow], row, JOBS)
    assert len(told) == 3
    source = tmp_path / "module.py"
    source.write_text("a = 1\n")
    before = source_digest(tmp_path)
    source.write_text("a = 2\n")
    assert source_digest(tmp_path) != before


def test_processes_find_the_same_and_nothing_is_left_of_a_whole_table(tmp_path: Path) -> None:
    told: list[str] = []
    both = jobs(tmp_path, told, processes=2)
    found = both.results(list[PickRow], row, JOBS)
    assert [rows[0].scores.kendall for rows in found] == [0.5, 0.25, 1 / 3]
    assert len(told) == 3
    both.forget()
    assert not list(tmp_path.rglob("*.json"))
