"""The evaluation on invented measurements: what judges, what is learned from, what is reachable."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import nn

from autosync.population import concatenate, decode, encode
from autosync.search.designs import known_designs
from autosync.simulator.learned.encoders import gat_network
from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.message_digests import digests_of
from autosync.simulator.runtime_dataset import MeasuredDomain
from autosync.strategy import Partition, VariableChoice
from benchmarks.evaluation import evaluate as evaluation
from benchmarks.evaluation.evaluate import SIMULATORS, evaluate, others_of, score_picks
from benchmarks.evaluation.lstm import lstm_network
from benchmarks.evaluation.measured_pool import MeasuredPool, merged_by_messages, pool_of
from benchmarks.evaluation.pick_scores import (
    assumed_truth,
    judge_picks,
    judged_picks,
    perfect_scores,
)
from benchmarks.evaluation.process import process, timeline
from benchmarks.evaluation.published import published
from benchmarks.evaluation.replay import answers, replay
from tests.simulator.learned.worlds import invented_seconds, small_domain, some_strategies

CHOOSERS = ("timeline", "transferred", "random")
SAMPLED, PICKS = 20, 36


def with_picks(gbps: float, seed: int) -> MeasuredDomain:
    """20 sampled strategies, 36 picks in three rounds, two designs."""
    domain = small_domain(gbps, layers=3)
    domain = replace(domain, graph=replace(domain.graph, name=f"model {seed}"))
    drawn = some_strategies(domain, SAMPLED + PICKS, seed)
    designs = [known_designs.ddp(domain), known_designs.ps_one_server(domain)]
    population = concatenate([drawn, encode(designs, domain)])
    first, second = (invented_seconds(domain, population, seed=s) for s in (10, 11))
    picks = tuple(f"pick/{CHOOSERS[i % 3]}" for i in range(PICKS))
    rounds = tuple(1 + i // 12 for i in range(PICKS))
    origins = ("sampled",) * SAMPLED + picks + ("ddp", "ps_one_server")
    rounds = (0,) * SAMPLED + rounds + (0, 0)
    return MeasuredDomain(domain, population, first, second, origins=origins, rounds=rounds)


@pytest.fixture(scope="module")
def pools() -> list[MeasuredPool]:
    return [pool_of(with_picks(gbps, seed)) for seed, gbps in enumerate((0.5, 1.0, 1.5))]


def test_picks_judged_by_hand() -> None:
    predicted = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0])
    measured = 1.1 * predicted
    measured[[0, 1]] = measured[[1, 0]]
    scores = judge_picks(predicted, measured, fastest=1.0)
    assert scores.kendall == pytest.approx(1 - 2 * 2 / 90)
    assert scores.excess == pytest.approx(0.1)
    assert scores.regret == pytest.approx(1.2)
    assert scores.top_regret == pytest.approx(0.1)


def test_what_is_learned_from_does_not_judge(pools: list[MeasuredPool]) -> None:
    judged, known = judged_picks(pools[0])
    measured = pools[0].measured
    assert list(known) == ["none", "12", "20"]
    assert not len(known["none"])
    assert [measured.origins[i] for i in known["12"][:2]] == ["ddp", "ps_one_server"]
    tried = known["20"][2:]
    assert known["12"].tolist() == [*known["20"][:2], *tried[:6]]
    assert {measured.origins[i] for i in tried} == {"pick/timeline"}
    assert [measured.rounds[i] for i in tried] == [1] * 4 + [2] * 4
    assert set(judged).isdisjoint(known["20"])
    asked: list[NDArray[np.int64]] = []

    def spy(
        features: StrategyFeatures,
        tried: NDArray[np.int64],
        seconds: NDArray[np.float64],
        rows: NDArray[np.int64],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        asked.append(tried)
        np.testing.assert_array_equal(rows, judged)
        np.testing.assert_array_equal(seconds, pools[0].trials.step_seconds[tried])
        return timeline([])(features, tried, seconds, rows)

    assert list(score_picks(pools[0], spy)) == ["none", "12", "20"]
    for words, tried in zip(known, asked, strict=True):
        np.testing.assert_array_equal(tried, known[words])


def test_no_simulator_learns_from_its_domain_or_for_replays_from_its_model(
    pools: list[MeasuredPool],
) -> None:
    own = pools[0].trials
    assert all(each is not own for each in others_of(pools[0], pools, True))
    assert len(others_of(pools[0], pools, True)) == len(pools) - 1
    twin = pool_of(with_picks(0.7, 0))
    assert len(others_of(pools[0], [*pools, twin], True)) == len(pools)
    assert len(others_of(pools[0], [*pools, twin], False)) == len(pools) - 1


def test_one_table_holds_every_simulator_with_transfer_and_without(
    pools: list[MeasuredPool], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Networks by AutoSync's settings take too long for a test."""
    monkeypatch.setattr(evaluation, "LEAST_STRATEGIES", SAMPLED + PICKS)
    names = [name for name in SIMULATORS if "published" not in name]
    evaluate(pools, pools, names, seeds=2)
    printed = capsys.readouterr().out.splitlines()
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed]
    table = [line for line in lines if len(line) == len(lines[0])]
    for name in names:
        for transfer in ("yes", "no") if name != "timeline" else ("no",):
            rows = [line for line in table if line[:2] == [name, transfer]]
            assert [line[2] for line in rows] == ["none", "12", "20"]
            assert all("±" in line[-2] for line in rows[1:])
    perfect = [line for line in table if line[0] == "perfect predictor"]
    assert [line[2] for line in perfect] == ["12", "20"]


def test_a_domain_without_picks_hides_no_row(
    pools: list[MeasuredPool], capsys: pytest.CaptureFixture[str]
) -> None:
    measured = with_picks(0.7, 9)
    origins = tuple(each if "/" not in each else "sampled" for each in measured.origins)
    bare = pool_of(replace(measured, origins=origins, rounds=(0,) * len(origins)))
    assert not len(bare.measured.picks)
    all_pools = [bare, *pools]
    evaluate(all_pools, all_pools, ["timeline", "linear"], seeds=0)
    printed = capsys.readouterr().out.splitlines()
    for known in ("| timeline | no |", "| linear | yes |", "| linear | no |"):
        assert len([line for line in printed if line.startswith(known)]) == 3


@pytest.mark.parametrize("name", ["timeline", "linear", "process"])
def test_a_replay_ends_nearer_than_it_begins_and_is_repeatable(
    name: str, pools: list[MeasuredPool]
) -> None:
    predictor = SIMULATORS[name](others_of(pools[0], pools, False))
    found = replay(pools[0], predictor, 20, seed=1)
    assert len(found) == 20
    assert found[-1] <= found[0]
    assert (found >= 0.0).all()
    assert (replay(pools[0], predictor, 20, seed=1) == found).all()


def test_a_predictor_forgets_the_trials_before(pools: list[MeasuredPool]) -> None:
    """A replay asks one predictor in every round and for every seed."""
    features, seconds = pools[0].trials.features, pools[0].trials.step_seconds
    asked, few, nothing = np.arange(30, 50), np.arange(12), np.arange(0)
    predictor = process(others_of(pools[0], pools, False))
    first = [predictor(features, tried, seconds[tried], asked) for tried in (nothing, few)]
    again = [predictor(features, tried, seconds[tried], asked) for tried in (nothing, few)]
    assert not np.allclose(first[0][0], first[1][0])
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("made", [gat_network, lstm_network])
def test_a_published_network_ranks_by_its_own_scores(
    made: Callable[[int], nn.Module], pools: list[MeasuredPool]
) -> None:
    """Without other domains it learns from the trials at hand, and before them is the timeline."""
    features, seconds = pools[0].trials.features, pools[0].trials.step_seconds
    asked, known, nothing = np.arange(30, 50), np.arange(12), np.arange(0)
    alone = published(made, [], epochs=3)
    np.testing.assert_array_equal(
        alone(features, nothing, seconds[nothing], asked)[0], features.base_seconds[asked]
    )
    taught = published(made, others_of(pools[0], pools, False), epochs=3)
    found = [each(features, known, seconds[known], asked)[0] for each in (alone, taught)]
    for each in found:
        assert np.median(each) == pytest.approx(np.median(seconds[known]), rel=0.01)
        assert each.std() > 0.0
    assert not np.allclose(found[0], found[1])


def test_the_answer_is_the_best_of_the_three_fastest_in_their_trials() -> None:
    found = answers(np.array([3.0, 1.0, 2.0, 1.5, 9.0]), np.array([3.1, 2.5, 2.2, 2.4, 0.5]))
    assert found.tolist() == [3.1, 2.5, 2.2, 2.2, 2.2]


def test_a_perfect_predictor_is_bounded_by_the_noise() -> None:
    labels = np.exp(np.random.default_rng(0).normal(0.0, 0.05, 80))
    bounds = [perfect_scores(labels, np.arange(80), noise) for noise in (0.001, 0.02, 0.08)]
    assert 0.95 < bounds[0].kendall < 1.0
    assert bounds[0].kendall > bounds[1].kendall > bounds[2].kendall
    noise_alone = np.exp(np.random.default_rng(2).normal(0.0, 0.01, 60))
    assert perfect_scores(noise_alone, np.arange(60), 0.04).kendall == pytest.approx(0.0, abs=0.1)


def test_the_bound_is_that_of_labels_drawn_from_a_known_truth() -> None:
    """Truth of 200 strategies, two noisy passes."""
    rng = np.random.default_rng(1)
    truth = np.exp(rng.normal(0.0, 0.03, 200))
    passes = truth * np.exp(rng.normal(0.0, 0.02, (2, 200)))
    labels = np.sqrt(passes[0] * passes[1])
    noise = 1.4826 * float(np.median(np.abs(np.log(passes[0] / passes[1]))))
    bound = perfect_scores(labels, np.arange(200), noise)
    true = judge_picks(truth, labels, float(labels.min()))
    assert bound.kendall == pytest.approx(true.kendall, abs=0.06)
    assert np.log(assumed_truth(labels, 0.02 / np.sqrt(2))).std() == pytest.approx(0.03, rel=0.15)


def test_strategies_of_one_plan_count_once() -> None:
    """A variable cut in two inside of the same message, and the design that it equals."""
    domain = small_domain(0.956, layers=3)
    whole = known_designs.all_reduce_one_bucket(domain)
    [shard] = whole.choices[0].shards
    rows = domain.graph.variables[0].shape[0]
    halves = Partition(0, (rows // 2, rows - rows // 2))
    first = VariableChoice(whole.choices[0].variable, halves, (shard, shard))
    cut = replace(whole, choices=(first, *whole.choices[1:]))
    population = encode([cut, known_designs.ps_one_server(domain), whole], domain)
    seconds, origins = np.array([1.0, 3.0, 4.0]), ("ps_one_server", "all_reduce_one_bucket")
    measured = MeasuredDomain(
        domain, population, seconds, seconds, origins=("sampled", *origins), rounds=(0, 0, 0)
    )
    merged = merged_by_messages(measured)
    assert merged.origins == ("all_reduce_one_bucket", "ps_one_server")
    assert merged.label_seconds == pytest.approx([2.0, 3.0])
    assert decode(merged.population, 0, domain).id == whole.id
    assert len(set(digests_of(domain, merged.population))) == len(merged) == 2
    assert merged_by_messages(merged) is merged
