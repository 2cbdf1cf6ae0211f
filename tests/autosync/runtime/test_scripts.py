"""The complete training scripts, before and after: the same losses and weights, from start to end
and from a checkpoint. The one after starts by torchrun and by mp.spawn."""

import io
import runpy
import shutil
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from autosync.bundle import make_bundle, save_bundle
from autosync.domain import Domain
from autosync.search.designs.design_table import DESIGNS
from autosync.strategy import Replica
from tests.autosync.runtime.ranks import Ranks
from tests.example_scripts import EXAMPLES, example_domain, losses, losses_in

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def domain() -> Domain:
    return example_domain("plain")


def run_before(rank: int, world: int, checkpoint: str) -> str:
    """What the script with torch's DDP prints on ranks that are there already."""
    with (
        patch.object(dist, "init_process_group"),
        patch.object(dist, "destroy_process_group"),
        patch.object(sys, "argv", ["train_before.py", checkpoint]),
        patch.object(sys, "path", [str(EXAMPLES), *sys.path]),
        redirect_stdout(io.StringIO()) as said,
    ):
        runpy.run_path(str(EXAMPLES / "train_before.py"), run_name="__main__")
    return said.getvalue()


def losses_before(pair: Ranks, checkpoint: Path) -> list[float]:
    return losses_in(pair.run(run_before, str(checkpoint))[0])


@pytest.fixture(scope="module")
def before(pair: Ranks, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], Tensor]:
    """Losses and weights of two epochs under torch's DDP."""
    checkpoint = tmp_path_factory.mktemp("before") / "before.pt"
    return losses_before(pair, checkpoint), weights(checkpoint)


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


@pytest.fixture(scope="module")
def first_epoch(
    tmp_path_factory: pytest.TempPathFactory, domain: Domain
) -> tuple[list[float], Path]:
    """The loss of the first epoch under parameter servers, and the checkpoint behind it."""
    folder = tmp_path_factory.mktemp("after")
    owned = shipped(domain, "ps_load_balanced", folder / "owned.json", (0.5, 0.5))
    checkpoint = folder / "first.pt"
    arguments = (str(checkpoint), owned, "--epochs", "1")
    return losses("train_after.py", *arguments, spawn=True), checkpoint


def check(found: list[float], checkpoint: Path, wanted: tuple[list[float], Tensor]) -> None:
    wanted_losses, wanted_weights = wanted
    assert found == pytest.approx(wanted_losses, abs=2e-4)
    assert float((weights(checkpoint) - wanted_weights).abs().max()) < 1e-4


def test_the_scripts_train_alike(
    tmp_path: Path,
    domain: Domain,
    before: tuple[list[float], Tensor],
    first_epoch: tuple[list[float], Path],
) -> None:
    """After: the second epoch goes on under another strategy, with uneven shares."""
    (first, second), _ = before
    assert second < first < 2.3, "the network learns"
    uneven = shipped(domain, "zero1_overlap", tmp_path / "uneven.json", (0.75, 0.25))
    after, checkpoint = first_epoch
    copied = tmp_path / "after.pt"
    shutil.copy(checkpoint, copied)
    check(after + losses("train_after.py", str(copied), uneven), copied, before)


def test_checkpoints_go_back_to_torchs_ddp(
    pair: Ranks,
    tmp_path: Path,
    before: tuple[list[float], Tensor],
    first_epoch: tuple[list[float], Path],
) -> None:
    after, checkpoint = first_epoch
    copied = tmp_path / "mixed.pt"
    shutil.copy(checkpoint, copied)
    check(after + losses_before(pair, copied), copied, before)
