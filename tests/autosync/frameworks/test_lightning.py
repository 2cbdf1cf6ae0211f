"""Lightning on two ranks, with a bundle's plan and with `strategy="ddp"`."""

import copy
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from autosync.bundle import save_bundle
from autosync.errors import AutosyncError
from autosync.runtime.attached_models import ATTACHED
from tests.autosync.frameworks.launched import as_torchrun
from tests.autosync.runtime.cases import Case
from tests.autosync.runtime.distributing import (
    DDP,
    bundle_of,
    fsdp2_bundle_of,
    largest_difference,
    placed_bundle_of,
    refusal,
)
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.training import OVERLAP
from tests.long_parameters import long_after

PLANS = {
    "all-reduce": Case(),
    "reduce-scatter": Case(method="rs", partition="even", schedule=OVERLAP),
    "sharded": Case(method="zero", partition="even", schedule=OVERLAP),
    "server": Case(method="ps", schedule=OVERLAP),
    "ddp": DDP,
}
LAGGING = Case(method="ps", staleness=1)
EXACT = ("all-reduce", "ddp")
"""They sum two ranks' gradients as torch's DDP does. The others update parts, or clip by a norm
that is added up in another order."""


@dataclass
class Fit:
    """One training, as a user writes it. model: a name in `lightning_models`."""

    model: str = "Regression"
    trainer: dict[str, Any] = field(default_factory=dict)
    strategy: dict[str, Any] = field(default_factory=dict)


TWO_OPTIMIZERS = Fit("Gan", strategy={"find_unused_parameters": True})
FITS = {
    "submodule": Fit(),
    "forward": Fit("ByForward"),
    "accumulated": Fit(trainer={"accumulate_grad_batches": 2}),
    "clipped by norm": Fit(trainer={"gradient_clip_val": 0.05}),
    "clipped by a hook": Fit("ClippedByHand"),
    "bf16": Fit(trainer={"precision": "bf16-mixed"}),
    "manual": Fit("Manual"),
    "set anew": Fit("SetAnew"),
}
READ_BY_VALUE = Fit(trainer={"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"})


@contextmanager
def lightning_warns() -> Iterator[None]:
    """Lightning's own advice, which has a category, and its use of names that torch gives up."""
    from lightning.fabric.utilities.warnings import PossibleUserWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PossibleUserWarning)
        warnings.filterwarnings("ignore", message=r".*LeafSpec.* is deprecated")
        # A resumed run keeps its own checkpoints elsewhere.
        warnings.filterwarnings("ignore", message="The dirpath has changed")
        yield


DEFAULTS: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 2,
    "max_epochs": 2,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def trainer_of(strategy: Any, **options: Any) -> Any:
    from lightning.pytorch import Trainer

    return Trainer(strategy=strategy, **(DEFAULTS | options))


def model_of(fit: Fit) -> Any:
    from tests.autosync.frameworks import lightning_models

    return getattr(lightning_models, fit.model)()


def ours(fit: Fit, model: Any, world: int, case: Case) -> Any:
    from autosync.frameworks.lightning import AutoSyncStrategy

    return AutoSyncStrategy(bundle_of(case, model, world), **fit.strategy)


def ddp(fit: Fit) -> Any:
    from lightning.pytorch.strategies import DDPStrategy

    return DDPStrategy(**fit.strategy)


def trained(
    fit: Fit, model: Any, strategy: Any, ckpt_path: Path | None = None, **options: Any
) -> Any:
    from tests.autosync.frameworks.lightning_models import few, loader

    torch.manual_seed(1)
    with lightning_warns():
        trainer = trainer_of(strategy, **(fit.trainer | options))
        trainer.fit(model, loader(), few(), ckpt_path=ckpt_path)
    return trainer


def result(model: Any, trainer: Any) -> dict[str, Any]:
    """Under manual optimization Lightning's ddp leaves every rank its own buffers, a plan sends
    rank 0's."""
    found = {
        "parameters": {name: p.detach() for name, p in model.named_parameters()},
        "states": [copy.deepcopy(o.state_dict()) for o in trainer.optimizers],
    }
    if model.automatic_optimization or trainer.global_rank == 0:
        found |= {"model": model.state_dict(), "losses": torch.tensor(model.losses)}
    return found


def beside_ddp(rank: int, world: int, plan: str, fits: dict[str, Fit]) -> dict[str, float]:
    as_torchrun(rank, world)
    found = {}
    for name, fit in fits.items():
        model, plain = model_of(fit), model_of(fit)
        trainer = trained(fit, model, ours(fit, model, world, PLANS[plan]))
        if plan != "ddp":
            assert model.optimizer_classes <= {"SynchronizedAdamW"}, model.optimizer_classes
        assert "no_sync" not in model.__dict__
        assert type(trainer.optimizers[0]) is torch.optim.AdamW
        beside = trained(fit, plain, ddp(fit))
        found[name] = largest_difference(result(model, trainer), result(plain, beside))
    return found


@pytest.mark.parametrize("plan", long_after(1, PLANS))
def test_lightning_trains_as_beside_ddp(pair: Ranks, plan: str) -> None:
    for differences in pair.run(beside_ddp, plan, FITS):
        limit = 0.0 if plan in EXACT else 3e-6
        assert max(differences.values()) <= limit, str(differences)


@pytest.mark.parametrize("plan", ["all-reduce", "ddp"])
def test_a_gan_and_clipping_by_value(pair: Ranks, plan: str) -> None:
    fits = {"gan": TWO_OPTIMIZERS, "by value": READ_BY_VALUE}
    for differences in pair.run(beside_ddp, plan, fits):
        assert max(differences.values()) == 0.0, str(differences)


def refused(rank: int, world: int) -> dict[str, str]:
    from autosync.frameworks.lightning import AutoSyncStrategy

    as_torchrun(rank, world)
    sharded = PLANS["sharded"]
    uneven = Case(shares=(0.75, 0.25))
    found = {}
    for name, fit, case in (
        ("by value", READ_BY_VALUE, sharded),
        ("in turns", TWO_OPTIMIZERS, sharded),
        ("uneven", Fit(), uneven),
        ("comm hook", Fit(strategy={"ddp_comm_hook": print}), Case()),
        ("option", Fit(strategy={"bucket_cap_mb": 1}), Case()),
        ("lagging", Fit(), LAGGING),
    ):
        model = model_of(fit)
        found[name] = refusal(
            lambda fit=fit, model=model, case=case: trained(  # type: ignore[misc]
                fit, model, ours(fit, model, world, case)
            )
        )
        assert "no_sync" not in model.__dict__
    model = model_of(Fit())
    sharding = AutoSyncStrategy(fsdp2_bundle_of(model, world))
    found["fully sharded"] = refusal(lambda: trained(Fit(), model, sharding))
    placing = AutoSyncStrategy(placed_bundle_of(model, world))
    found["placed"] = refusal(lambda: trained(Fit(), model, placing))
    return found


def test_features_of_lightning_that_plans_do_not_support_are_refused(pair: Ranks) -> None:
    for found in pair.run(refused):
        assert 'Trainer(gradient_clip_algorithm="norm")' in found["by value"]
        assert "all optimizers of a model step after each" in found["in turns"]
        assert "Trainer(use_distributed_sampler=False)" in found["uneven"]
        assert "ddp_comm_hook" in found["comm hook"]
        assert "bucket_cap_mb" in found["option"]
        assert "Pass allow_inexact=True" in found["lagging"]
        assert "Use Lightning's own FSDP2" in found["fully sharded"]
        assert "Lightning takes every rank's parameters for whole" in found["placed"]


def lagged(rank: int, world: int, case: Case, folder: str) -> tuple[list[float], list[float]]:
    """Weights after `fit` with checkpoints and evaluations, and those in the last checkpoint."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    as_torchrun(rank, world)
    saving = ModelCheckpoint(Path(folder), save_top_k=-1)
    options = {"allow_inexact": True, "on_drift": print}
    fit = Fit(trainer={"enable_checkpointing": True, "callbacks": [saving]}, strategy=options)
    model = model_of(fit)
    trained(fit, model, ours(fit, model, world, case))
    assert "no_sync" not in model.__dict__
    assert ATTACHED.network_of(model) is None
    saved = torch.load(saving.best_model_path, weights_only=False)["state_dict"]
    both = (
        dict(model.named_parameters()),
        {name: saved[name] for name, _ in model.named_parameters()},
    )
    weights, in_file = (
        torch.cat([value.detach().flatten() for value in each.values()]).tolist() for each in both
    )
    return weights, in_file


def test_plans_that_lag_are_fitted_saved_and_taken_off(pair: Ranks, tmp_path: Path) -> None:
    (first, saved), (second, _) = pair.run(lagged, LAGGING, str(tmp_path))
    assert first == second == saved


def resumed(rank: int, world: int, plan: str, folder: str) -> float:
    from lightning.pytorch.callbacks import ModelCheckpoint

    as_torchrun(rank, world)
    fit = Fit(trainer={"num_sanity_val_steps": 0, "enable_checkpointing": True})
    first, second, whole = (model_of(fit) for _ in range(3))

    def until(epochs: int, model: Any, name: str, ckpt_path: Path | None = None) -> Any:
        saving = ModelCheckpoint(Path(folder) / name, save_top_k=-1)
        strategy = ours(fit, model, world, PLANS[plan])
        options = {"max_epochs": epochs, "callbacks": [saving]}
        return trained(fit, model, strategy, ckpt_path, **options)

    until(1, first, "first")
    (path,) = Path(folder).glob("first/*.ckpt")
    again = until(2, second, "second", path)
    uninterrupted = until(2, whole, "whole")
    second.losses[:0] = first.losses
    in_file = torch.load(path, weights_only=False)["optimizer_states"][0]["state"]
    assert len(in_file) == len(list(first.parameters()))
    return largest_difference(result(second, again), result(whole, uninterrupted))


@pytest.mark.parametrize("plan", ["all-reduce", "sharded"])
def test_a_checkpoint_resumes(pair: Ranks, plan: str, tmp_path: Path) -> None:
    assert pair.run(resumed, plan, str(tmp_path)) == [0.0, 0.0]


def again_and_tested(rank: int, world: int, plan: str) -> float:
    from tests.autosync.frameworks.lightning_models import few, loader

    as_torchrun(rank, world)
    found = []
    for by_plan in (True, False):
        model = model_of(Fit())
        strategy = ours(Fit(), model, world, PLANS[plan]) if by_plan else ddp(Fit())
        torch.manual_seed(1)
        with lightning_warns():
            trainer = trainer_of(strategy, max_epochs=1)
            trainer.fit(model, loader(), few())
            trainer.test(model, few(), verbose=False)
            trainer.fit_loop.max_epochs = 2
            trainer.fit(model, loader(), few())
        found.append(result(model, trainer))
    return largest_difference(*found)


def test_a_trainer_fits_twice_and_tests(pair: Ranks) -> None:
    assert max(pair.run(again_and_tested, "sharded")) < 3e-6


class Stumbles(RuntimeError):
    pass


def interrupted(rank: int, world: int) -> str:
    as_torchrun(rank, world)
    model = model_of(Fit())
    step = model.training_step

    def training_step(batch: Any, batch_idx: int) -> Any:
        if rank == 1 and batch_idx == 1:
            raise Stumbles("of its own")
        return step(batch, batch_idx)

    model.training_step = training_step
    try:
        trained(Fit(), model, ours(Fit(), model, world, PLANS["sharded"]))
    except (AutosyncError, Stumbles) as error:
        assert "no_sync" not in model.__dict__
        return str(error)
    return "nothing"


def test_an_error_of_one_rank_is_told_the_others(pair: Ranks) -> None:
    first, second = pair.run(interrupted)
    assert "rank 1 stopped: training was interrupted by Stumbles: of its own" in first
    assert second == "of its own"


def by_ddp(rank: int, world: int, bundle: str) -> tuple[dict[str, Any], str]:
    """The weights, and what a strategy is after a journey to a spawned process."""
    from autosync.frameworks.lightning import AutoSyncStrategy

    as_torchrun(rank, world)
    model = model_of(Fit())
    save_bundle(bundle_of(Case(ranks_per_node=2), model, world), f"{bundle}{rank}")
    trained(Fit(), model, ddp(Fit()))
    arrived = pickle.loads(pickle.dumps(AutoSyncStrategy(bundle, start_method="spawn")))
    return model.state_dict(), arrived.given.bundle


@pytest.mark.long
def test_lightning_starts_the_ranks(pair: Ranks, tmp_path: Path) -> None:
    (beside, bundle), _ = pair.run(by_ddp, str(tmp_path / "best.json"))
    assert bundle == str(tmp_path / "best.json")
    weights = tmp_path / "weights.pt"
    alone = {k: v for k, v in os.environ.items() if k != "AUTOSYNC_HOST"}
    done = subprocess.run(
        [sys.executable, "-m", f"{__package__}.started_by_lightning", f"{bundle}0", str(weights)],
        env={**alone, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert "does not fit" not in done.stderr
    assert largest_difference(torch.load(weights), beside) == 0.0
