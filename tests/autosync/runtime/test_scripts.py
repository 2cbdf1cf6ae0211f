"""The complete training scripts, before and after: the same losses and weights, from start to end
and from a checkpoint, by torchrun and by mp.spawn."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from autosync.bundle import make_bundle, save_bundle
from autosync.domain import Domain
from autosync.search.designs.design_table import DESIGNS
from autosync.strategy import Replica
from tests.example_scripts import example_domain, losses

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def domain() -> Domain:
    return example_domain("plain")


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], Tensor]:
    """Losses and weights of two epochs under torch's DDP."""
    checkpoint = tmp_path_factory.mktemp("before") / "before.pt"
    return losses("train_before.py", str(checkpoint)), weights(checkpoint)


def shipped(domain: Domain, name: str, path: Path, shares: tuple[float, float]) -> str:
    replicas = tuple(Replica(rank, share) for rank, share in enumerate(shares))
    strategy = replace(DESIGNS[name](domain), replicas=replicas)
    save_bundle(make_bundle(strategy, domain), path)
    return str(path)


def weights(path: Path) -> Tensor:
    state = torch.load(path, weights_only=True)
    momentum = [
        entry["momentum_buffer"] for _, entry in sorted(state["optimizer"]["state"].items())
    ]
    return torch.cat([tensor.flatten() for tensor in (*state["model"].values(), *momentum)])


def test_the_scripts_train_alike(
    tmp_path: Path, domain: Domain, before: tuple[list[float], Tensor]
) -> None:
    """After: the first epoch under one strategy, the second under another, with uneven shares."""
    wanted_losses, wanted = before
    dear = shipped(domain, "dear", tmp_path / "dear.json", (0.5, 0.5))
    uneven = shipped(domain, "zero1_overlap", tmp_path / "uneven.json", (0.75, 0.25))
    after = losses("train_after.py", str(tmp_path / "after.pt"), dear, "--epochs", "1", spawn=True)
    after += losses("train_after.py", str(tmp_path / "after.pt"), uneven)
    assert len(wanted_losses) == 2
    assert wanted_losses[1] < wanted_losses[0] < 2.3, "the network learns"
    assert after == pytest.approx(wanted_losses, abs=2e-4)
    assert float((weights(tmp_path / "after.pt") - wanted).abs().max()) < 1e-4


def test_checkpoints_go_back_to_torchs_ddp(
    tmp_path: Path, domain: Domain, before: tuple[list[float], Tensor]
) -> None:
    wanted_losses, wanted = before
    owned = shipped(domain, "ps_load_balanced", tmp_path / "owned.json", (0.5, 0.5))
    mixed = losses("train_after.py", str(tmp_path / "mixed.pt"), owned, "--epochs", "1")
    mixed += losses("train_before.py", str(tmp_path / "mixed.pt"), spawn=True)
    assert mixed == pytest.approx(wanted_losses, abs=2e-4)
    assert float((weights(tmp_path / "mixed.pt") - wanted).abs().max()) < 1e-4
