"""Checkpoints and transfer, on invented measurements."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from autosync.domain import Domain
from autosync.errors import InvalidInput, NotFound
from autosync.simulator.learned.checkpoint import load_checkpoint, read_card, save_checkpoint
from autosync.simulator.learned.features.domain_descriptor import (
    DESCRIPTOR,
    describe_domain,
    importance,
)
from autosync.simulator.learned.features.strategy_features import features_of
from autosync.simulator.learned.learned_simulators import UNTRIED_MARGIN, LearnedSimulator
from autosync.simulator.learned.models.ensemble import PRIOR_SHARES, EnsembleModel
from autosync.simulator.learned.models.gaussian_process import GaussianModel
from autosync.simulator.learned.models.learned_model import LabelledTrials, LearnedModel
from autosync.simulator.learned.models.recipe import MEMBER_KINDS
from autosync.simulator.learned.models.trees import TreesModel
from autosync.simulator.learned.networks.network_model import NetworkModel
from autosync.simulator.learned.networks.network_training import TrainingSettings
from autosync.simulator.learned.training import (
    nearest_checkpoint,
    source_of,
    transferred,
)
from autosync.simulator.ranking_accuracy import pairwise_accuracy
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.simulator.learned.worlds import invented_seconds, small_domain, some_strategies, taught

MAKERS: dict[str, Callable[[], LearnedModel]] = {
    "gaussian": GaussianModel,
    "trees": TreesModel,
    "lstm": lambda: NetworkModel("lstm"),
    "gat": lambda: NetworkModel("gat"),
    "ensemble": EnsembleModel,
}


def labelled(domain: Domain, count: int = 60, seed: int = 0) -> LabelledTrials:
    population = some_strategies(domain, count, seed)
    return LabelledTrials(
        domain, features_of(domain, population), invented_seconds(domain, population)
    )


@pytest.fixture(scope="module")
def trials() -> LabelledTrials:
    return labelled(small_domain())


@pytest.fixture(scope="module")
def sources() -> list[LabelledTrials]:
    return [
        labelled(small_domain(gbps, layers, width), 80, seed)
        for seed, (gbps, layers, width) in enumerate(((1.5, 4, 96), (0.6, 6, 80), (0.956, 5, 128)))
    ]


@pytest.mark.parametrize("name", MAKERS)
def test_a_checkpoint_predicts_and_refits_as_what_was_saved(
    name: str, trials: LabelledTrials, tmp_path: Path
) -> None:
    model = MAKERS[name]()
    taught(model, trials)
    simulator = LearnedSimulator(model)
    saved = save_checkpoint(tmp_path / "it", simulator, (source_of(trials),), 0.9, "10 strategies")
    restored, card = load_checkpoint(tmp_path / "it.safetensors")
    assert card == saved
    assert (card.kind, card.trials, card.accuracy) == (name, 60, 0.9)
    expected = simulator.predict_features(trials.domain, trials.features)
    found = restored.predict_features(trials.domain, trials.features)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-9)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-9)
    assert not np.allclose(found[0], trials.features.base_seconds, rtol=1e-3)
    restored.refit_features(trials)


def test_a_transferred_checkpoint_keeps_what_it_knew_before(
    sources: list[LabelledTrials], trials: LabelledTrials, tmp_path: Path
) -> None:
    """A Gaussian process of the trials beside that of other domains."""
    simulator = transferred(GaussianModel(), sources, trials.domain)
    simulator.refit_features(trials)
    save_checkpoint(tmp_path / "it", simulator, (source_of(trials),), None, "")
    restored, _ = load_checkpoint(tmp_path / "it")
    for found, expected in zip(
        restored.predict_features(trials.domain, trials.features),
        simulator.predict_features(trials.domain, trials.features),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_a_checkpoint_of_other_features_is_refused(trials: LabelledTrials, tmp_path: Path) -> None:
    simulator = LearnedSimulator(GaussianModel())
    simulator.refit_features(trials)
    save_checkpoint(tmp_path / "old", simulator, (source_of(trials),), None, "")
    card = json.loads((tmp_path / "old.json").read_text())
    card["feature_version"] -= 1
    (tmp_path / "old.json").write_text(json.dumps(card))
    with pytest.raises(InvalidInput, match="features of version") as refusal:
        load_checkpoint(tmp_path / "old")
    assert refusal.value.thing == "feature_version"
    assert "Train it again" in refusal.value.remedy
    assert read_card(tmp_path / "old").trials == 60


def test_an_ensemble_of_one_kind_of_network_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "old", LearnedSimulator(EnsembleModel()), (), None, "")
    card = json.loads((tmp_path / "old.json").read_text())
    (tmp_path / "old.json").write_text(json.dumps(card | {"network": "lstm"}))
    with pytest.raises(InvalidInput, match="does not read") as refusal:
        load_checkpoint(tmp_path / "old")
    assert "Train it again" in refusal.value.remedy


@pytest.mark.parametrize("weights", [(0.9, 0.9, 0.0, 0.0), (-0.1, 0.5, 0.0, 0.0)])
def test_an_ensemble_whose_weights_are_no_shares_is_refused(
    weights: tuple[float, ...], tmp_path: Path
) -> None:
    model = EnsembleModel()
    model.weights = np.array(weights)
    save_checkpoint(tmp_path / "bad", LearnedSimulator(model), (), None, "")
    with pytest.raises(InvalidInput, match="'weights' holds no shares"):
        load_checkpoint(tmp_path / "bad")


@pytest.mark.parametrize("damage", ["truncated", "tensor missing", "other shape", "other card"])
def test_a_damaged_checkpoint_is_refused(
    damage: str, trials: LabelledTrials, tmp_path: Path
) -> None:
    model = NetworkModel("lstm")
    taught(model, trials)
    simulator = LearnedSimulator(model)
    save_checkpoint(tmp_path / "bad", simulator, (source_of(trials),), None, "")
    file = tmp_path / "bad.safetensors"
    tensors = load_file(file)
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:1000])
    elif damage == "tensor missing":
        save_file({k: v for k, v in tensors.items() if k != "summary.scale"}, file)
    elif damage == "other shape":
        save_file(tensors | {"network.lstm.weight_hh_l0": np.zeros((2, 2), np.float32)}, file)
    else:
        card = json.loads((tmp_path / "bad.json").read_text())
        (tmp_path / "bad.json").write_text(json.dumps(card | {"colour": "red"}))
    with pytest.raises(InvalidInput):
        load_checkpoint(tmp_path / "bad")


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        load_checkpoint(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["gaussian", "trees", "lstm"])
def test_a_transferred_simulator_ranks_an_unseen_domain_better_than_the_timeline(
    name: str, sources: list[LabelledTrials]
) -> None:
    target = labelled(small_domain(gbps=0.8, layers=5, width=112), 100, seed=7)
    simulator = transferred(
        NetworkModel("lstm", TrainingSettings(epochs=12)) if name == "lstm" else MAKERS[name](),
        sources,
        target.domain,
    )
    predicted, std = simulator.predict_features(target.domain, target.features)
    accuracy = pairwise_accuracy(predicted, target.step_seconds)
    timeline = pairwise_accuracy(target.features.base_seconds, target.step_seconds)
    assert accuracy > timeline + 0.02
    errors = np.abs(np.log(predicted / target.step_seconds))
    assert np.median(errors) < np.median(
        np.abs(np.log(target.features.base_seconds / target.step_seconds))
    )
    assert (std > 0).all()


@pytest.mark.parametrize("make", [GaussianModel, TreesModel])
def test_few_trials_of_the_target_improve_on_zero_and_on_none_elsewhere(
    make: Callable[[], LearnedModel], sources: list[LabelledTrials]
) -> None:
    target = labelled(small_domain(gbps=0.8, layers=5, width=112), 120, seed=8)
    few, unseen = np.arange(20), np.arange(40, 120)
    known = LabelledTrials(target.domain, target.features.take(few), target.step_seconds[few])
    moved = transferred(make(), sources, target.domain)
    alone = LearnedSimulator(make())

    def accuracy(simulator: LearnedSimulator) -> float:
        predicted, _ = simulator.predict_features(target.domain, target.features.take(unseen))
        return pairwise_accuracy(predicted, target.step_seconds[unseen])

    before = accuracy(moved)
    moved.refit_features(known)
    alone.refit_features(known)
    assert accuracy(moved) >= before - 0.005
    assert accuracy(moved) > accuracy(alone)


def test_a_level_is_believed_once_however_often_a_simulator_learns(
    sources: list[LabelledTrials], trials: LabelledTrials
) -> None:
    """Refitting begins with what other domains taught, not with the last refit."""
    simulator = transferred(GaussianModel(), sources, trials.domain)
    first = trials.take(np.arange(3))
    simulator.refit_features(first)
    once = simulator.calibration
    simulator.refit_features(first)
    assert simulator.calibration.log_seconds == pytest.approx(once.log_seconds)
    assert simulator.calibration.margin == once.margin < UNTRIED_MARGIN


def test_an_ensemble_of_other_domains_weighs_its_members_as_foreseen_until_trials_tell(
    sources: list[LabelledTrials], trials: LabelledTrials
) -> None:
    model = EnsembleModel()
    for network in model.members[2:]:
        assert isinstance(network, NetworkModel)
        network.training = TrainingSettings(epochs=4)
    simulator = transferred(model, sources[:2], trials.domain)
    member_scores = [each.scores(trials.domain, trials.features) for each in model.members]
    base = np.log(trials.features.base_seconds)
    expected = model.scores(trials.domain, trials.features)
    shares = np.array([PRIOR_SHARES[kind] for kind in MEMBER_KINDS])
    np.testing.assert_allclose(expected, np.array(member_scores).T @ shares / shares.sum())
    assert np.ptp([np.std(each - base) for each in member_scores]) > 1e-3
    few = np.arange(6)
    simulator.refit_features(
        LabelledTrials(trials.domain, trials.features.take(few), trials.step_seconds[few])
    )
    np.testing.assert_array_equal(model.weights, shares / shares.sum())


def test_the_target_may_not_be_a_source(sources: list[LabelledTrials]) -> None:
    with pytest.raises(InvalidInput, match="among the sources"):
        transferred(GaussianModel(), sources, sources[0].domain)
    with pytest.raises(InvalidInput, match="no source"):
        transferred(GaussianModel(), [], sources[0].domain)


def test_the_checkpoint_most_like_the_domain_is_chosen(
    sources: list[LabelledTrials], tmp_path: Path
) -> None:
    cards = []
    for number, source in enumerate(sources):
        simulator = LearnedSimulator(GaussianModel())
        path = tmp_path / str(number)
        cards.append(save_checkpoint(path, simulator, (source_of(source),), None, ""))
    for number, source in enumerate(sources):
        cluster = replace(source.domain.cluster, name="another of the same kind")
        assert nearest_checkpoint(replace(source.domain, cluster=cluster), cards) == number
    with pytest.raises(InvalidInput, match="no checkpoint"):
        nearest_checkpoint(sources[0].domain, [])


def test_what_is_alike_counts_more() -> None:
    target = describe_domain(small_domain(1.0))
    near = describe_domain(small_domain(1.1))
    far = describe_domain(domain_of(chain_graph(), grid_cluster(16, 1, 20.0)))
    weights = importance(target, [near, far])
    assert weights[0] == 1.0
    assert weights[1] < 0.5


def test_a_descriptor_knows_no_names_and_no_size_of_cluster() -> None:
    domain = small_domain()
    nodes = tuple(reversed(domain.cluster.nodes))
    renamed = replace(domain, cluster=replace(domain.cluster, name="other", nodes=nodes))
    np.testing.assert_allclose(describe_domain(renamed), describe_domain(domain))
    for size in (2, 3, 17):
        other = domain_of(chain_graph(), grid_cluster(size, 2))
        assert describe_domain(other).shape == (len(DESCRIPTOR),)
        assert np.isfinite(describe_domain(other)).all()
