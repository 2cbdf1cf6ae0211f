"""The tables of picks, the perfect predictor, and strategies of one plan."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autosync.population import concatenate, decode, encode
from autosync.search.designs import known_designs
from autosync.simulator.evaluation.evaluation_run import EvaluationPlan, evaluate
from autosync.simulator.evaluation.evaluation_tables import EvaluatedDomain, subjects_of
from autosync.simulator.evaluation.measured_domain import MeasuredDomain
from autosync.simulator.evaluation.merged_measurements import merged_by_messages
from autosync.simulator.evaluation.perfect_predictor import (
    assumed_truth,
    label_error,
    perfect_scores,
)
from autosync.simulator.evaluation.pick_report import chosen_table, pick_summary, pick_table
from autosync.simulator.evaluation.pick_tables import (
    chosen_rows,
    judge_picks,
    judged_picks,
    rank_picks,
)
from autosync.simulator.learned.models.learned_model import FittedScores, LabelledTrials
from autosync.simulator.learned.models.linear_model import LinearModel
from autosync.simulator.message_digests import digests_of
from autosync.strategy import Partition, VariableChoice
from tests.simulator.learned.worlds import invented_seconds, small_domain, some_strategies

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
def subjects() -> list[EvaluatedDomain]:
    return subjects_of([with_picks(gbps, seed) for seed, gbps in enumerate((0.5, 1.5))])


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


def test_what_is_learned_from_does_not_judge(subjects: list[EvaluatedDomain]) -> None:
    judged, known = judged_picks(subjects[0])
    measured = subjects[0].measured
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


def test_no_judged_pick_is_learned_from(subjects: list[EvaluatedDomain]) -> None:
    seen: list[np.ndarray] = []

    class Spy(LinearModel):
        def fit(self, trials: LabelledTrials) -> FittedScores:
            seen.append(trials.step_seconds)
            return super().fit(trials)

    rows = rank_picks(subjects[0], subjects, {"spy": lambda seed: Spy()})
    judged = set(subjects[0].trials.step_seconds[judged_picks(subjects[0])[0]])
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


def test_a_simulator_that_overcharges_is_seen(subjects: list[EvaluatedDomain]) -> None:
    rows = chosen_rows(subjects[0])
    assert [row.chooser for row in rows] == list(CHOOSERS)
    assert sum(row.picks for row in rows) == len(subjects[0].measured.picks)
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


def test_the_page_leads_with_picks(tmp_path: Path, subjects: list[EvaluatedDomain]) -> None:
    measured = [subject.measured for subject in subjects]
    evaluate(measured, tmp_path, EvaluationPlan(("transfer",), seeds=(0,)), say=lambda _: None)
    evaluate(measured, tmp_path, EvaluationPlan(("picks",), seeds=(0,)), say=lambda _: None)
    text = (tmp_path / "evaluation.md").read_text()
    assert text.index("## Picks") < text.index("## Domains ranked without a trial")
    assert "| gaussian, transferred | none | " in text
    assert "| perfect predictor | none | " in text
