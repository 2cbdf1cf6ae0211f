"""Policies on disk, and how the bundled one was trained."""

import json
from pathlib import Path

import pytest
import torch

from autosync.bundled_data import data_file
from autosync.errors import InvalidInput
from autosync.search.placement.policy_checkpoint import (
    FILE,
    FOLDER,
    PolicyCard,
    bundled_policy,
    load_policy,
    save_policy,
)
from autosync.search.placement.policy_network import PlacementPolicy, PolicySizes
from autosync.search.placement.policy_pretraining import GRAPHS, drawn_tasks, pretrain
from autosync.search.placement.policy_training import PolicySettings

SMALL = PolicySizes(width=8, heads=2, layers=1)


def saved(folder: Path) -> Path:
    path = folder / FILE
    save_policy(path, PlacementPolicy(SMALL), PolicyCard(GRAPHS, 1, 8, 1.0, 0, SMALL))
    return path


def test_a_policy_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    policy, card = load_policy(saved(tmp_path))
    torch.manual_seed(0)
    for name, tensor in PlacementPolicy(SMALL).state_dict().items():
        assert torch.equal(tensor, policy.state_dict()[name])
    assert card.sizes == SMALL


def test_the_bundled_policy_has_learned_from_the_graphs_that_its_card_names() -> None:
    card = load_policy(data_file(FOLDER, FILE))[1]
    assert card.graphs == GRAPHS
    assert card.gain > 1
    assert bundled_policy().score.weight.abs().sum() > 0  # a new one's is zero


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"feature_version": 0}, "features of version 0"),
        ({"sizes": {"width": 16, "heads": 2, "layers": 1, "among": 1}}, "has not the tensors"),
    ],
)
def test_a_policy_of_another_kind_is_refused(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    path = saved(tmp_path)
    card = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps(card | change))
    with pytest.raises(InvalidInput, match=words):
        load_policy(path)


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_policy(path)
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_policy(tmp_path / "none.safetensors")


def test_pretraining_draws_the_same_domains_and_learns_the_same(tmp_path: Path) -> None:
    settings = PolicySettings(samples=4)
    ends = []
    for _ in range(2):
        torch.manual_seed(0)
        policy = PlacementPolicy(SMALL)
        tasks = drawn_tasks(2, settings, ("dlrm",))
        gains = list(pretrain(policy, tasks, 2, 4, settings))
        ends.append((policy.score.weight, gains, [task.domain.id for task in tasks]))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1:] == ends[1][1:]
    assert len(ends[0][1]) == 2
