"""The tables that benchmarks.evaluation writes, on invented measurements."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autosync.population import concatenate, decode, encode
from autosync.search.designs import known_designs
from autosync.simulator.learned.models.gaussian_process import GaussianModel
from autosync.simulator.learned.models.learned_model import FittedScores, LabelledTrials
from autosync.simulator.message_digests import digests_of
from autosync.simulator.ranking_accuracy import pairs_ranked
from autosync.simulator.runtime_dataset import MeasuredDomain
from autosync.strategy import Partition, VariableChoice
from benchmarks.evaluation.evaluate import evaluate
from benchmarks.evaluation.evaluated_domain import (
    PERFECT,
    EvaluatedDomain,
    MakeModel,
    evaluated_domains,
    merged_by_messages,
)
from benchmarks.evaluation.pick_tables import (
    chosen_rows,
    chosen_table,
    judge_picks,
    judged_picks,
    pick_summary,
    pick_table,
    rank_picks,
)
from benchmarks.evaluation.ranking_scores import (
    assumed_truth,
    judge,
    known_and_test,
    label_error,
    perfect_scores,
)
from benchmarks.evaluation.strategy_tables import (
    draw_curves,
    held_out_strategies,
    learning_curve,
    summary_table,
    table_of,
    transfer_sources,
    without_a_trial,
)
from tests.simulator.learned.worlds import invented_seconds, small_domain, some_strategies
from tests.simulator.measurements import measured, write

ROOT = Path(__file__).resolve().parents[2]
CHOOSERS = ("timeline", "transferred", "random")
SAMPLED, PICKS = 20, 36


def with_picks(gbps: float, seed: int) -> MeasuredDomain:
    """20 sampled strategies, 36 picks in three rounds, two designs."""
    domain = small_domain(gbps, layers=3)
    drawn = some_strategies(domain, SAMPLED + PICKS, seed)
    designs = [known_designs.ddp(domain), known_designs.ps_one_server(domain)]
    population = concatenate([drawn, encode(designs, domain)])
    first, second = (invented_seconds(domain, population, seed=s) for s in (10, 11))
    picks = tuple(f"pick/{CHOOSERS[i % 3]}" for i in range(PICKS))
    rounds = tuple(1 + i // 12 for i in range(PICKS))
    predicted = np.full(len(population), np.nan)
    predicted[SAMPLED : SAMPLED + PICKS] = 0.9 * first[SAMPLED : SAMPLED + PICKS]
    return MeasuredDomain(
        domain,
        population,
        first,
        second,
        origins=("sampled",) * SAMPLED + picks + ("ddp", "ps_one_server"),
        rounds=(0,) * SAMPLED + rounds + (0, 0),
        predicted_seconds=predicted,
    )


@pytest.fixture(scope="module")
def domains() -> list[MeasuredDomain]:
    return [measured(gbps, seed) for seed, gbps in enumerate((0.5, 0.956, 1.5))]


@pytest.fixture(scope="module")
def subjects(domains: list[MeasuredDomain]) -> list[EvaluatedDomain]:
    return evaluated_domains(domains)


@pytest.fixture(scope="module")
def picked() -> list[EvaluatedDomain]:
    return evaluated_domains([with_picks(gbps, seed) for seed, gbps in enumerate((0.5, 1.5))])


def test_only_pairs_beyond_the_noise_count() -> None:
    measured = np.array([1.0, 1.01, 2.0])
    predicted = np.array([1.1, 1.0, 3.0])
    assert pairs_ranked(predicted, measured, 0.02) == (2.0, 2)
    assert judge(predicted, measured, noise=0.01).beyond_noise == 1.0
    assert judge(predicted, measured, noise=0.001).beyond_noise == pytest.approx(2 / 3)
    assert np.isnan(judge(predicted, measured, noise=None).beyond_noise)


def test_the_fastest_quarter_is_of_the_measured() -> None:
    measured = np.arange(1.0, 13.0)
    predicted = measured.copy()
    predicted[[0, 2]] = predicted[[2, 0]]
    assert judge(predicted, measured, 0.001).fast_quarter == 0.0
    predicted = measured.copy()
    predicted[[5, 9]] = predicted[[9, 5]]
    assert judge(predicted, measured, 0.001).fast_quarter == 1.0


def test_splits_are_whole_disjoint_and_of_the_papers_shares() -> None:
    for seed in range(3):
        known, test = known_and_test(100, seed)
        assert (len(known), len(test)) == (85, 15)
        assert sorted([*known, *test]) == list(range(100))
    assert not np.array_equal(known_and_test(100, 0)[1], known_and_test(100, 1)[1])


def test_the_comparison_holds_every_simulator_and_a_perfect_one(
    subjects: list[EvaluatedDomain],
) -> None:
    models: dict[str, MakeModel] = {"gaussian": lambda seed: GaussianModel()}
    rows = [row for each in subjects for row in held_out_strategies(each, models, seeds=(0, 1))]
    found = {(row.line, row.simulator): row for row in rows}
    assert len(found) == 3 * 4
    for subject in subjects:
        name = subject.name
        perfect, timeline, gaussian = (
            found[name, who].scores for who in (PERFECT, "timeline", "gaussian")
        )
        assert perfect.beyond_noise > timeline.beyond_noise
        assert gaussian.beyond_noise >= timeline.beyond_noise
        assert found[name, "gaussian"].trials == 51
        assert found[name, "timeline"].trials == 0
    text = table_of(rows, "accuracy")
    assert len(text.splitlines()) == 2 + 3 + 1
    assert "mean" in text
    worst = min(found[subject.name, "gaussian"].scores.beyond_noise for subject in subjects)
    line = next(each for each in summary_table(rows).splitlines() if each.startswith("| gaussian"))
    assert line.split("|")[3].strip() == f"{worst:.3f}"


def test_no_model_sees_a_test_strategy(subjects: list[EvaluatedDomain]) -> None:
    """Labels of the test strategies may change at will: the predictions do not."""
    subject = subjects[0]
    seen: list[np.ndarray] = []

    class Spy(GaussianModel):
        def fit(self, trials: LabelledTrials) -> FittedScores:
            seen.append(trials.step_seconds)
            return super().fit(trials)

    held_out_strategies(subject, {"spy": lambda seed: Spy()}, seeds=(0,))
    learning_curve(subject, {"spy": lambda seed: Spy()}, counts=(20,), seeds=(0,))
    test = set(subject.trials.step_seconds[known_and_test(60, 0)[1]])
    assert seen
    assert all(test.isdisjoint(labels) for labels in seen)


def test_learning_curves_start_at_the_timeline(subjects: list[EvaluatedDomain]) -> None:
    rows = learning_curve(
        subjects[0], {"gaussian": lambda seed: GaussianModel()}, counts=(0, 40, 500), seeds=(0,)
    )
    assert [row.trials for row in rows] == [0, 40]
    base = held_out_strategies(subjects[0], {}, seeds=(0,))
    timeline = next(row for row in base if row.simulator == "timeline")
    assert rows[0].scores.accuracy == timeline.scores.accuracy


def test_transfer_never_learns_from_its_target(subjects: list[EvaluatedDomain]) -> None:
    for target in subjects:
        for sources in transfer_sources(target, subjects).values():
            assert target not in sources
        rows = without_a_trial(target, subjects, {"gaussian": lambda seed: GaussianModel()})
        settings = {row.line.removeprefix(f"{target.name} ") for row in rows}
        assert settings == {"(no trials)", "(leave domain out)"}


def test_tables_that_were_not_asked_for_stay_unless_the_measurements_changed(
    domains: list[MeasuredDomain], tmp_path: Path
) -> None:
    def run(measured: list[MeasuredDomain], table: str) -> str:
        evaluate(measured, tmp_path, (table,), seeds=(0,))
        return (tmp_path / "evaluation.md").read_text()

    assert "without a trial" in run(domains[:1], "transfer")
    both = run(domains[:1], "picks")
    assert both.index("Picks") < both.index("without a trial")
    assert run(domains[:1], "picks") == both
    assert "Picks" not in run(domains[1:2], "transfer")


def test_the_command_writes_a_page(domains: list[MeasuredDomain], tmp_path: Path) -> None:
    write(tmp_path / "data", domains[:1])
    command = [sys.executable, "-m", "benchmarks.evaluation.evaluate"]

    def run(dataset: str) -> subprocess.CompletedProcess[str]:
        arguments = [str(tmp_path / dataset), "-o", str(tmp_path / "out"), "--tables", "picks"]
        return subprocess.run(
            [*command, *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    done = run("data")
    assert done.returncode == 0, done.stderr
    assert "No search has picked" in (tmp_path / "out" / "evaluation.md").read_text()
    failed = run("nothing")
    assert failed.returncode == 1
    assert "trials.parquet" in failed.stderr


def test_a_picture_of_learning_curves(subjects: list[EvaluatedDomain], tmp_path: Path) -> None:
    rows = learning_curve(
        subjects[0], {"gaussian": lambda seed: GaussianModel()}, (0, 20), seeds=(0,)
    )
    draw_curves(rows, tmp_path / "curves.svg")
    assert (tmp_path / "curves.svg").stat().st_size > 1000


TAUGHT = ["none", "DDP", "2 designs, 6 picks", "2 designs", "2 designs, 8 picks"]


def test_picks_judged_by_hand() -> None:
    predicted = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0])
    measured = 1.1 * predicted
    measured[[0, 1]] = measured[[1, 0]]
    scores = judge_picks(predicted, measured, np.arange(10) > 0, fastest=1.0)
    assert scores.kendall == pytest.approx(1 - 2 * 2 / 90)
    assert scores.chosen_kendall == 1.0
    assert scores.excess == pytest.approx(0.1)
    assert scores.regret == pytest.approx(1.2)
    assert scores.top_regret == pytest.approx(0.1)
    # Of the eight: 1.2, -0.45 and six of 0.1.
    assert scores.top_excess == pytest.approx(0.1)


def test_what_is_learned_from_does_not_judge(picked: list[EvaluatedDomain]) -> None:
    judged, known = judged_picks(picked[0])
    measured = picked[0].measured
    assert list(known) == TAUGHT
    assert not len(known["none"])
    assert [measured.origins[i] for i in known["DDP"]] == ["ddp"]
    assert [measured.origins[i] for i in known["2 designs"]] == ["ddp", "ps_one_server"]
    tried = known["2 designs, 8 picks"][2:]
    few = known["2 designs, 6 picks"]
    assert few.tolist() == [*known["2 designs"], *tried[:6]]
    assert {measured.origins[i] for i in tried} == {"pick/timeline"}
    assert [measured.rounds[i] for i in tried] == [1] * 4 + [2] * 4
    assert len(judged) == len(measured.picks) - 8
    assert set(judged).isdisjoint(known["2 designs, 8 picks"])


def test_no_judged_pick_is_learned_from(picked: list[EvaluatedDomain]) -> None:
    seen: list[np.ndarray] = []

    class Spy(GaussianModel):
        def fit(self, trials: LabelledTrials) -> FittedScores:
            seen.append(trials.step_seconds)
            return super().fit(trials)

    rows = rank_picks(picked[0], picked, {"spy": lambda seed: Spy()})
    judged = set(picked[0].trials.step_seconds[judged_picks(picked[0])[0]])
    assert [len(labels) for labels in seen] == [1, 8, 2, 10] * 2
    assert all(judged.isdisjoint(labels) for labels in seen)
    assert [(row.simulator, row.trials) for row in rows] == [
        ("timeline", "none"),
        *(("spy", words) for words in TAUGHT[1:]),
        *(("spy, transferred", words) for words in TAUGHT),
        ("perfect predictor", "none"),
    ]
    perfect = rows[-1].scores
    assert all(row.scores.kendall < perfect.kendall <= 1.0 for row in rows[:-1])
    assert abs(perfect.excess) < 0.02
    assert 0.0 <= perfect.top_regret <= perfect.regret
    assert "| timeline | none | " in pick_summary(rows)
    assert pick_table(rows, "kendall").splitlines()[0].endswith("| perfect predictor, none |")


def test_a_simulator_that_overcharges_is_seen(picked: list[EvaluatedDomain]) -> None:
    rows = chosen_rows(picked[0])
    assert [row.chooser for row in rows] == list(CHOOSERS)
    assert sum(row.picks for row in rows) == len(picked[0].measured.picks)
    assert all(0.08 < row.excess < 0.14 for row in rows)
    assert all(row.regret >= 0.0 for row in rows)
    assert "| timeline | 12 | " in chosen_table(rows)


def test_a_perfect_predictor_is_bounded_by_the_noise() -> None:
    labels = np.exp(np.random.default_rng(0).normal(0.0, 0.05, 80))
    bounds = [perfect_scores(labels, noise) for noise in (0.001, 0.02, 0.08)]
    kendall = [0.0 if bound is None else bound.kendall for bound in bounds]
    assert 0.95 < kendall[0] < 1.0
    assert kendall[0] > kendall[1] > kendall[2]
    assert perfect_scores(labels, None) is None


def test_the_bound_is_that_of_labels_drawn_from_a_known_truth() -> None:
    """Truth of 200 strategies, two noisy passes: the bound from the labels alone is what the truth
    scores on them."""
    rng = np.random.default_rng(1)
    truth = np.exp(rng.normal(0.0, 0.03, 200))
    passes = truth * np.exp(rng.normal(0.0, 0.02, (2, 200)))
    labels = np.sqrt(passes[0] * passes[1])
    noise = 1.4826 * float(np.median(np.abs(np.log(passes[0] / passes[1]))))
    assert label_error(noise) == pytest.approx(0.02 / np.sqrt(2), rel=0.2)
    bound = perfect_scores(labels, noise)
    assert bound is not None
    i, j = np.triu_indices(200, 1)
    right = np.mean((truth[i] < truth[j]) == (labels[i] < labels[j]))
    assert bound.accuracy == pytest.approx(right, abs=0.03)
    assert np.log(assumed_truth(labels, 0.02 / np.sqrt(2))).std() == pytest.approx(0.03, rel=0.15)


def test_labels_that_spread_by_noise_alone_cannot_be_ranked() -> None:
    labels = np.exp(np.random.default_rng(2).normal(0.0, 0.01, 60))
    bound = perfect_scores(labels, 0.04)
    assert bound is not None
    assert bound.accuracy == pytest.approx(0.5, abs=0.05)


def test_strategies_of_one_plan_count_once() -> None:
    """A variable cut in two inside of the same message, and the design that it equals."""
    domain = small_domain(0.956, layers=3)
    whole = known_designs.all_reduce_one_bucket(domain)
    [shard] = whole.choices[0].shards
    rows = domain.graph.variables[0].shape[0]
    halves = Partition(0, (rows // 2, rows - rows // 2))
    cut = replace(
        whole,
        choices=(
            VariableChoice(whole.choices[0].variable, halves, (shard, shard)),
            *whole.choices[1:],
        ),
    )
    other = known_designs.ps_one_server(domain)
    measured = MeasuredDomain(
        domain,
        encode([cut, other, whole], domain),
        np.array([1.0, 3.0, 4.0]),
        np.array([1.0, 3.0, 4.0]),
        origins=("sampled", "ps_one_server", "all_reduce_one_bucket"),
        rounds=(0, 0, 0),
    )
    merged = merged_by_messages(measured)
    assert merged.origins == ("all_reduce_one_bucket", "ps_one_server")
    assert merged.label_seconds == pytest.approx([2.0, 3.0])
    assert decode(merged.population, 0, domain).id == whole.id
    assert len(set(digests_of(domain, merged.population))) == len(merged) == 2
    assert merged_by_messages(merged) is merged


def test_the_page_leads_with_picks(tmp_path: Path, picked: list[EvaluatedDomain]) -> None:
    measured = [subject.measured for subject in picked]
    evaluate(measured, tmp_path, ("transfer",), seeds=(0,))
    evaluate(measured, tmp_path, ("picks",), seeds=(0,))
    text = (tmp_path / "evaluation.md").read_text()
    assert text.index("## Picks") < text.index("## Domains ranked without a trial")
    assert "| gaussian, transferred | none | " in text
    assert "| perfect predictor | none | " in text
