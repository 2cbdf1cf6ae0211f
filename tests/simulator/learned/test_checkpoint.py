"""Checkpoints and encoders, on invented measurements."""

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from autosync.errors import InvalidInput, NotFound
from autosync.simulator.learned.checkpoint import CheckpointCard, load_checkpoint, save_checkpoint
from autosync.simulator.learned.encoders import gat_network
from autosync.simulator.learned.features.node_features import NODE_COLUMNS, pruned_graph
from autosync.simulator.learned.features.strategy_features import features_of
from autosync.simulator.learned.learned_simulator import LabelledTrials, LearnedSimulator
from autosync.simulator.learned.training import simulator_from, source_of
from tests.domains import chain_graph
from tests.simulator.learned.worlds import (
    invented_seconds,
    other_domains,
    small_domain,
    some_strategies,
)

KINDS = ("none", "gat")
DOMAIN = small_domain(0.8, 5, 112)


@cache
def with_nodes(seed: int, gbps: float, layers: int) -> LabelledTrials:
    domain = small_domain(gbps, layers)
    domain = replace(domain, graph=replace(domain.graph, name=f"chain {seed}"))
    population = some_strategies(domain, 30, seed)
    seconds = invented_seconds(domain, population)
    return LabelledTrials(domain, features_of(domain, population, with_nodes=True), seconds)


@pytest.fixture(scope="module")
def sources() -> list[LabelledTrials]:
    return [with_nodes(seed, *size) for seed, size in enumerate(((1.5, 4), (0.6, 6), (1.0, 5)))]


@pytest.fixture(scope="module")
def simulators(sources: list[LabelledTrials]) -> dict[str, LearnedSimulator]:
    return {"gat": simulator_from(sources, gat_network(0)), "none": simulator_from(other_domains())}


def saved(folder: Path, kind: str, simulators: dict[str, LearnedSimulator]) -> Path:
    simulator = simulators[kind]
    trials = [with_nodes(seed, 1.0, 5) for seed in range(len(simulator.sources))]
    sources = tuple(
        replace(source_of(each), descriptor=tuple(source.descriptor.tolist()))
        for each, source in zip(trials, simulator.sources, strict=True)
    )
    card = CheckpointCard(sources, 0.9, "10 strategies", kind)  # type: ignore[arg-type]
    save_checkpoint(folder / "it", simulator, card)
    return folder / "it.safetensors"


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_predicts_and_learns_as_what_was_saved(
    kind: str, simulators: dict[str, LearnedSimulator], tmp_path: Path
) -> None:
    restored, card = load_checkpoint(saved(tmp_path, kind, simulators))
    assert (card.encoder, card.trials, card.accuracy) == (kind, 90, 0.9)
    population = some_strategies(DOMAIN, 20, 5)
    seconds = invented_seconds(DOMAIN, population)
    for learns in (False, True):
        if learns:
            for each in (simulators[kind], restored):
                each.refit(DOMAIN, population.take(np.arange(8)), seconds[:8])
        expected = simulators[kind].predict_with_std(DOMAIN, population)
        found = restored.predict_with_std(DOMAIN, population)
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-5, atol=1e-9)


def changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    def apply(file: Path) -> None:
        tensors = load_file(file)
        save_file(tensors | {name: np.ascontiguousarray(change(tensors[name]))}, file)

    return apply


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:1000])


def without_residuals(file: Path) -> None:
    save_file({k: v for k, v in load_file(file).items() if k != "residual"}, file)


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut off": (cut_off, "no tensors"),
    "a tensor less": (without_residuals, "'residual' is missing"),
    "other shape": (changed("kernel.center", lambda each: each[1:]), "shape"),
    "other type": (changed("columns", lambda each: each.astype(np.float64)), "type"),
    "no number": (changed("residual", lambda each: each * np.nan), "not finite"),
    "another domain": (changed("source", lambda each: each + 1), "not there"),
    "no weights": (changed("encoder.network.last.0.bias", lambda each: each * np.inf), "finite"),
    "a smaller network": (changed("encoder.network.last.0.weight", lambda e: e[:, 1:]), "shape"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_checkpoint_is_refused_with_the_reason(
    name: str, simulators: dict[str, LearnedSimulator], tmp_path: Path
) -> None:
    damage, why = DAMAGE[name]
    file = saved(tmp_path, "gat", simulators)
    damage(file)
    with pytest.raises(InvalidInput, match=why):
        load_checkpoint(file)


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("version", 1, "version: Input should be 2, got 1"),
        ("feature_version", 7, "features of version 7"),
        ("encoder", "none", "belongs to no simulator"),
        ("encoder", "lstm", "encoder"),
    ],
)
def test_a_card_of_something_else_is_refused(
    field: str, value: object, why: str, simulators: dict[str, LearnedSimulator], tmp_path: Path
) -> None:
    file = saved(tmp_path, "gat", simulators)
    card = json.loads((tmp_path / "it.json").read_text())
    (tmp_path / "it.json").write_text(json.dumps(card | {field: value}))
    with pytest.raises(InvalidInput, match=why) as refusal:
        load_checkpoint(file)
    assert refusal.value.remedy
    if field != "encoder":
        assert "autosync simulator train" in refusal.value.remedy


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        load_checkpoint(tmp_path / "nowhere")


def test_an_encoder_is_the_same_every_time_and_leaves_random_state_and_threads_alone(
    sources: list[LabelledTrials],
) -> None:
    threads, features, found = torch.get_num_threads(), sources[1].features, []
    taught = []
    for _ in range(2):
        torch.manual_seed(torch.seed())
        before = torch.get_rng_state()
        encoder = simulator_from(sources, gat_network(3)).encoder
        assert torch.equal(torch.get_rng_state(), before)
        assert encoder is not None
        found.append(encoder.joined(features).summary)
        taught.append(encoder.network.state_dict())
    np.testing.assert_array_equal(found[0], found[1])
    untaught = gat_network(3).state_dict()
    assert any(not torch.equal(value, untaught[name]) for name, value in taught[0].items())
    hidden = found[0][:, features.summary.shape[1] :]
    assert (hidden.std(axis=0) > 1e-6).any(), "strategies differ"
    assert torch.get_num_threads() == threads


def test_nodes_hold_all_bytes_and_messages_of_a_strategy(sources: list[LabelledTrials]) -> None:
    nodes = sources[0].features.nodes
    assert nodes is not None
    size = nodes.values[:, :, NODE_COLUMNS.index("size")]
    np.testing.assert_allclose(size.sum(axis=1), 1.0, rtol=1e-5)
    families = [k for k, name in enumerate(NODE_COLUMNS) if name.startswith("messages_")]
    assert (nodes.values[:, :, families].sum(axis=(1, 2)) >= 1.0 - 1e-5).all()
    assert np.isfinite(nodes.values).all()


def test_neighbours_of_the_pruned_graph_are_joined() -> None:
    node, edges = pruned_graph(chain_graph(((8, 4), (8,), (16, 8), (16,))))
    assert node.tolist() == [0, 1, 2, 3]
    assert edges.T.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1], [2, 3], [3, 2]]


@pytest.mark.parametrize(
    "step", ["atomic_write.os.fsync", "simulator.learned.checkpoint.to_json"], ids=["first", "card"]
)
def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(
    step: str,
    simulators: dict[str, LearnedSimulator],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = saved(tmp_path, "none", simulators)
    before = file.read_bytes()

    def full(written: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(f"autosync.{step}", full)
    with pytest.raises(OSError, match="no space left"):
        saved(tmp_path, "gat", simulators)
    assert file.read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["it.json", "it.safetensors"]
