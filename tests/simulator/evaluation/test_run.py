"""The dataset's folder, the tables and the command, on invented measurements."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from autosync.documents import to_json
from autosync.errors import InvalidInput, NotFound
from autosync.population import decode
from autosync.simulator.evaluation.evaluation_run import EvaluationPlan, evaluate
from autosync.simulator.evaluation.evaluation_tables import (
    PERFECT,
    EvaluatedDomain,
    compare_simulators,
    guided_search,
    learning_curve,
    subjects_of,
    transfer_sources,
    transfers_to,
)
from autosync.simulator.evaluation.measured_dataset import COLUMNS, load_dataset, write_dataset
from autosync.simulator.evaluation.measured_domain import MeasuredDomain
from autosync.simulator.evaluation.report import summary_table, table_of
from autosync.simulator.evaluation.splits import split_strategies
from autosync.simulator.learned.learned_simulators import LearnedSimulator
from autosync.simulator.learned.models.learned_model import FittedScores, LabelledTrials
from autosync.simulator.learned.models.linear_model import LinearModel
from tests.simulator.learned.worlds import invented_seconds, small_domain, some_strategies

ROOT = Path(__file__).resolve().parents[3]


def measured(gbps: float, seed: int, count: int = 60) -> MeasuredDomain:
    domain = small_domain(gbps, layers=3)
    population = some_strategies(domain, count, seed)
    first, second = (invented_seconds(domain, population, seed=s) for s in (10, 11))
    return MeasuredDomain(domain, population, first, second)


def rows_of(each: MeasuredDomain) -> pd.DataFrame:
    rows = []
    assert each.second_seconds is not None
    for number, seconds in ((1, each.step_seconds), (2, each.second_seconds)):
        for index in range(len(each)):
            strategy = decode(each.population, index, each.domain)
            rows.append(
                {
                    "domain": each.domain.id,
                    "strategy_id": strategy.id,
                    "strategy": to_json(strategy),
                    "origin": "sampled",
                    "occasion": 1,
                    "pass": number,
                    "step_seconds": float(seconds[index]),
                    "spread": 0.01,
                    "error": None,
                    "launcher": "invented",
                    "byte_scale": 1.0,
                    "time_scale": 1.0,
                    "load": None,
                }
            )
    return pd.DataFrame(rows, columns=list(COLUMNS))


@pytest.fixture(scope="module")
def domains() -> list[MeasuredDomain]:
    return [measured(gbps, seed) for seed, gbps in enumerate((0.5, 0.956, 1.5))]


@pytest.fixture(scope="module")
def subjects(domains: list[MeasuredDomain]) -> list[EvaluatedDomain]:
    return subjects_of(domains)


def write(folder: Path, domains: list[MeasuredDomain]) -> pd.DataFrame:
    table = pd.concat([rows_of(each) for each in domains], ignore_index=True)
    write_dataset(folder, [each.domain for each in domains], table)
    return table


def test_a_dataset_comes_back_as_it_was_written(
    domains: list[MeasuredDomain], tmp_path: Path
) -> None:
    write(tmp_path, domains)
    found = {each.domain.id: each for each in load_dataset(tmp_path)}
    for each in domains:
        back = found[each.domain.id]
        seconds = {
            decode(each.population, i, each.domain).id: each.step_seconds[i]
            for i in range(len(each))
        }
        assert len(back) == len(seconds)
        for index in range(len(back)):
            identity = decode(back.population, index, back.domain).id
            assert back.step_seconds[index] == seconds[identity]
        assert back.noise == pytest.approx(each.noise, rel=0.2)


def test_failed_strategies_are_left_out_and_counted(
    domains: list[MeasuredDomain], tmp_path: Path
) -> None:
    table = rows_of(domains[0])
    lost = table["strategy_id"].iloc[3]
    table.loc[(table["strategy_id"] == lost) & (table["pass"] == 2), "step_seconds"] = np.nan
    write_dataset(tmp_path, [domains[0].domain], table)
    [back] = load_dataset(tmp_path)
    assert (len(back), back.failed) == (59, 1)


def test_what_was_measured_once_so_far_counts_and_the_noise_is_that_of_the_others(
    domains: list[MeasuredDomain], tmp_path: Path
) -> None:
    each = domains[0]
    table = rows_of(each)
    waiting = set(table["strategy_id"].iloc[:5])
    table = table[~(table["strategy_id"].isin(waiting) & (table["pass"] == 2))]
    write_dataset(tmp_path, [each.domain], table)
    [back] = load_dataset(tmp_path)
    assert back.second_seconds is not None
    assert (len(back), int(np.isnan(back.second_seconds).sum())) == (60, 5)
    assert np.isfinite(back.label_seconds).all()
    assert back.noise == pytest.approx(each.noise, rel=0.2)


def test_what_is_missing_is_named(domains: list[MeasuredDomain], tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"trials\.parquet"):
        load_dataset(tmp_path)
    table = rows_of(domains[0])
    with pytest.raises(InvalidInput, match="'spread'"):
        write_dataset(tmp_path, [domains[0].domain], table.drop(columns="spread"))
    with pytest.raises(InvalidInput, match="was not given"):
        write_dataset(tmp_path, [domains[1].domain], table)
    write_dataset(tmp_path, [domains[0].domain], table)
    (tmp_path / "domains" / f"{domains[0].domain.id}.json").unlink()
    with pytest.raises(NotFound, match=domains[0].domain.id):
        load_dataset(tmp_path)


def test_measurements_must_fit_their_strategies(domains: list[MeasuredDomain]) -> None:
    each = domains[0]
    with pytest.raises(InvalidInput, match="60 strategies have 3"):
        MeasuredDomain(each.domain, each.population, np.ones(3))
    with pytest.raises(InvalidInput, match="positive"):
        MeasuredDomain(each.domain, each.population, np.zeros(60))


def test_the_comparison_holds_every_simulator_and_a_perfect_one(
    subjects: list[EvaluatedDomain],
) -> None:
    rows = compare_simulators(subjects, {"linear": lambda seed: LinearModel()}, seeds=(0, 1))
    found = {(row.domain, row.simulator): row for row in rows}
    assert len(found) == 3 * 4
    for subject in subjects:
        name = subject.name
        perfect, timeline, linear = (
            found[name, who].scores for who in (PERFECT, "timeline", "linear")
        )
        assert perfect.beyond_noise > timeline.beyond_noise
        assert linear.beyond_noise >= timeline.beyond_noise
        assert found[name, "linear"].trials == 51
        assert found[name, "timeline"].trials == 0
    text = table_of(rows, "accuracy")
    assert len(text.splitlines()) == 2 + 3 + 1
    assert "mean" in text
    worst = min(found[subject.name, "linear"].scores.beyond_noise for subject in subjects)
    line = next(each for each in summary_table(rows).splitlines() if each.startswith("| linear"))
    assert line.split("|")[3].strip() == f"{worst:.3f}"


def test_no_model_sees_a_test_strategy(subjects: list[EvaluatedDomain]) -> None:
    """Labels of the test strategies may change at will: the predictions do not."""
    subject = subjects[0]
    seen: list[np.ndarray] = []

    class Spy(LinearModel):
        def fit(self, trials: LabelledTrials) -> FittedScores:
            seen.append(trials.step_seconds)
            return super().fit(trials)

    compare_simulators([subject], {"spy": lambda seed: Spy()}, seeds=(0,))
    learning_curve(subject, {"spy": lambda seed: Spy()}, counts=(20,), seeds=(0,))
    test = set(subject.trials.step_seconds[split_strategies(60, 0).test])
    assert seen
    assert all(test.isdisjoint(labels) for labels in seen)


def test_learning_curves_start_at_the_timeline(subjects: list[EvaluatedDomain]) -> None:
    rows = learning_curve(
        subjects[0], {"linear": lambda seed: LinearModel()}, counts=(0, 40, 500), seeds=(0,)
    )
    assert [row.trials for row in rows] == [0, 40]
    base = compare_simulators(subjects[:1], {}, seeds=(0,))
    timeline = next(row for row in base if row.simulator == "timeline")
    assert rows[0].scores.accuracy == timeline.scores.accuracy


def test_transfer_never_learns_from_its_target(subjects: list[EvaluatedDomain]) -> None:
    for target in subjects:
        for sources in transfer_sources(target, subjects).values():
            assert target not in sources
        rows = transfers_to(target, subjects, {"linear": lambda seed: LinearModel()}, seeds=(0,))
        assert {row.setting for row in rows} == {"no trials", "leave domain out"}


def test_a_guided_search_finds_the_fastest_sooner_than_chance(
    subjects: list[EvaluatedDomain],
) -> None:
    subject = subjects[1]
    guided = guided_search(subject, lambda: LearnedSimulator(LinearModel()), budget=24)
    random = np.mean([guided_search(subject, lambda: None, 24, seed=s) for s in range(10)], axis=0)
    assert len(guided) == 24
    assert (np.diff(guided) <= 0).all()
    assert guided[7] < random[7]
    whole = guided_search(subject, lambda: None, budget=60)
    assert whole[-1] == 1.0


def test_tables_that_were_not_asked_for_stay_unless_the_measurements_changed(
    domains: list[MeasuredDomain], tmp_path: Path
) -> None:
    def run(measured: list[MeasuredDomain], table: str) -> str:
        evaluate(measured, tmp_path, EvaluationPlan((table,), seeds=(0,)), say=lambda _: None)
        return (tmp_path / "evaluation.md").read_text()

    assert "without a trial" in run(domains[:1], "transfer")
    both = run(domains[:1], "search")
    assert both.index("without a trial") < both.index("Searches guided")
    assert run(domains[:1], "search") == both
    assert "Searches guided" not in run(domains[1:2], "transfer")


def test_the_command_writes_tables_and_pictures(
    domains: list[MeasuredDomain], tmp_path: Path
) -> None:
    write(tmp_path / "data", domains[:1])
    command = [sys.executable, str(ROOT / "scripts" / "evaluate_simulators.py")]
    out = tmp_path / "out"
    done = subprocess.run(
        [*command, str(tmp_path / "data"), "-o", str(out), "--tables", "search", "--seeds", "0"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    text = (out / "evaluation.md").read_text()
    assert "Searches guided by simulators" in text
    assert (out / "search_0.svg").stat().st_size > 1000
    failed = subprocess.run(
        [*command, str(tmp_path / "nothing"), "-o", str(out)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert failed.returncode == 1
    assert "trials.parquet" in failed.stderr
