"""Scripts under Accelerate, on a bundle and on Accelerate's own DDP."""

import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autosync
from autosync.bundle import Bundle
from autosync.errors import NotSupported
from autosync.runtime.attached_models import ATTACHED
from autosync.runtime.attachment import Attachment
from tests.autosync.frameworks.launched import with_fresh_accelerate
from tests.autosync.runtime.cases import Case, make_model
from tests.autosync.runtime.distributing import (
    ENGINES,
    PLANS,
    bundle_of,
    fsdp2_bundle_of,
    largest_difference,
    placed_bundle_of,
    refusal,
    warned,
)
from tests.autosync.runtime.ranks import Ranks
from tests.long_parameters import long_after

EXACT = ("all-reduce", "reduce-scatter", "ddp")
"""Every rank updates all variables by torch's own step; others sum the norm in another order."""

BATCHES = 4
ACCUMULATED = 2
MAX_NORM = 0.2


def fresh(
    rank: int, world: int, case: Case | None = None, precision: str = "no", **options: Any
) -> Any:
    """An Accelerator; of a case with its bundle."""
    with_fresh_accelerate(rank, world)
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, mixed_precision=precision, **options)
    if case is not None:
        use_bundle(accelerator, bundle_of(case, make_model("mlp"), world))
    return accelerator


def use_bundle(accelerator: Any, bundle: Bundle | str, **options: Any) -> None:
    """Accelerate is imported in ranks alone."""
    from autosync.frameworks import accelerate

    accelerate.use_bundle(accelerator, bundle, **options)


def held(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


def beside_ddp(
    rank: int, world: int, script: Callable[[int, int, Case | None], object]
) -> dict[str, float]:
    """By plan: how far what a script returns is from what it does under Accelerate's own DDP."""
    theirs = script(rank, world, None)
    return {
        name: largest_difference(script(rank, world, case), theirs)
        for name, case in ENGINES.items()
    }


def data_loader(world: int) -> DataLoader[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(4 * BATCHES * world, 6, generator=generator)
    return DataLoader(TensorDataset(inputs, inputs[:, :3].sin()), batch_size=4)


class Script:
    """A training script as Accelerate's guides write it."""

    def __init__(self, accelerator: Any, world: int):
        self.accelerator = accelerator
        self.plain = make_model("mlp")
        optimizer = torch.optim.AdamW(self.plain.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        self.model, self.optimizer, self.loader, self.scheduler = accelerator.prepare(
            self.plain, optimizer, data_loader(world), scheduler
        )
        self.norms: list[float] = []

    def train(self, skipped: int = 0, save_at: int = -1, folder: str = "") -> None:
        accelerator = self.accelerator
        loader = accelerator.skip_first_batches(self.loader, skipped) if skipped else self.loader
        for batch, (inputs, wanted) in enumerate(loader, start=skipped):
            if batch == save_at:
                accelerator.save_state(folder)
            with accelerator.accumulate(self.model):
                loss = nn.functional.mse_loss(self.model(inputs), wanted)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(self.model.parameters(), MAX_NORM)
                    self.norms.append(float(norm))
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()

    def found(self) -> dict[str, Any]:
        return {
            "weights": dict(self.accelerator.get_state_dict(self.model)),
            "state": self.optimizer.state_dict()["state"],
            "norms": torch.tensor(self.norms),
            "rate": self.scheduler.get_last_lr(),
        }


def prepared(rank: int, world: int, case: Case | None, precision: str = "no") -> Script:
    options = {"gradient_accumulation_steps": ACCUMULATED}
    return Script(fresh(rank, world, case, precision, **options), world)


def same_script(rank: int, world: int, case: Case, precision: str, folder: str) -> dict[str, float]:
    """How far the script is from DDP's, and a resumed one from one that was not interrupted."""
    theirs = prepared(rank, world, None, precision)
    theirs.train()
    ours = prepared(rank, world, case, precision)
    ours.train(save_at=BATCHES // 2, folder=folder)
    plan = ATTACHED.plans.get(id(ours.plain))
    if isinstance(plan, Attachment):
        assert plan.engine.iteration.number == BATCHES // ACCUMULATED - 1  # from 0
    assert ours.accelerator.unwrap_model(ours.model) is ours.plain
    beside, without = theirs.found(), ours.found()
    autosync.detach(ours.plain)
    again = prepared(rank, world, case, precision)
    again.accelerator.load_state(folder)
    again.train(skipped=BATCHES // 2)
    resumed = again.found()
    resumed["norms"] = torch.cat([without["norms"][: len(ours.norms) // 2], resumed["norms"]])
    autosync.detach(again.plain)
    assert any(norm > MAX_NORM for norm in theirs.norms)
    return {
        "beside DDP": largest_difference(without, beside),
        "resumed": largest_difference(resumed, without),
    }


CASES = [(name, "no") for name in ENGINES] + [("all-reduce", "bf16"), ("sharded", "bf16")]


@pytest.mark.parametrize(("name", "precision"), long_after(2, CASES))
def test_a_script_trains_as_under_accelerates_own_ddp(
    pair: Ranks, name: str, precision: str, tmp_path: Path
) -> None:
    for found in pair.run(same_script, ENGINES[name], precision, str(tmp_path)):
        assert found["resumed"] == 0
        assert found["beside DDP"] <= (0 if name in EXACT else 3e-6), found


def synchronized_late(rank: int, world: int, case: Case | None) -> dict[str, Tensor]:
    """Forward passes under `no_sync`, and a backward pass that is to be synchronized after all."""
    accelerator, plain = fresh(rank, world, case), make_model("mlp")
    model, optimizer = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), lr=0.5))
    for inputs, wanted in data_loader(world):
        mine = inputs[rank::world], wanted[rank::world]
        with accelerator.no_sync(model):
            first = nn.functional.mse_loss(model(mine[0]), mine[1])
            second = model(mine[0] + 1).square().mean()
            accelerator.backward(first)
        with accelerator.trigger_sync_in_backward(model):
            accelerator.backward(second)
        optimizer.step()
        optimizer.zero_grad()
    weights = held(plain)
    if case is not None:
        autosync.detach(plain)
    return weights


def several(rank: int, world: int, case: Case | None) -> dict[str, Tensor]:
    """Two optimizers of one model, and a teacher that is not trained, from one `prepare`."""
    accelerator = fresh(rank, world, case)
    plain, teacher = make_model("mlp"), make_model("mlp").requires_grad_(False)
    parameters = list(plain.parameters())
    made = [torch.optim.SGD(parameters[:2], lr=0.1), torch.optim.AdamW(parameters[2:], lr=0.01)]
    if case is None:
        model, first, second = accelerator.prepare(plain, *made)
    else:
        model, first, teacher, second = accelerator.prepare(plain, made[0], teacher, made[1])
    for inputs, _ in data_loader(world):
        mine = inputs[rank::world]
        accelerator.backward(nn.functional.mse_loss(model(mine), teacher(mine) + 1))
        accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
        for optimizer in (first, second):
            optimizer.step()
        for optimizer in (first, second):
            optimizer.zero_grad()
    weights = held(plain)
    if case is not None:
        given = autosync.detach(plain)[1]
        assert given == made
    return weights


def two_models(rank: int, world: int, case: Case | None) -> list[dict[str, Tensor]]:
    """Two models with a bundle each, and a second stage of one of them."""
    accelerator = fresh(rank, world)
    plain = [make_model("mlp"), make_model("mlp")]
    plain[1][0].weight.data.mul_(0.5)  # type: ignore[index]
    networks, optimizers = [], []
    for model in plain:
        if case is not None:
            use_bundle(accelerator, bundle_of(case, model, world))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        network, optimizer = accelerator.prepare(model, optimizer)
        networks.append(network)
        optimizers.append(optimizer)

    def train(number: int) -> None:
        for inputs, wanted in data_loader(world):
            loss = nn.functional.mse_loss(
                networks[number](inputs[rank::world]), wanted[rank::world]
            )
            accelerator.backward(loss)
            optimizers[number].step()
            optimizers[number].zero_grad()

    train(0)
    train(1)
    if case is not None:
        autosync.detach(plain[0])
        again = accelerator.prepare(plain[0], optimizers[0])
        assert again[1] is optimizers[0]
        networks[0] = again[0]
    train(0)
    weights = [held(model) for model in plain]
    if case is not None:
        for model in plain:
            autosync.detach(model)
    return weights


@pytest.mark.parametrize(
    ("script", "limit"), [(synchronized_late, 0.0), (several, 3e-6), (two_models, 0.0)]
)
def test_other_scripts_train_as_under_accelerates_own_ddp(
    pair: Ranks, script: Callable[[int, int, Case | None], object], limit: float
) -> None:
    for found in pair.run(beside_ddp, script):
        assert max(found.values()) <= limit, found


def refused(rank: int, world: int) -> dict[str, str]:
    """Ways to write it that would train wrongly, or not by the bundle."""
    accelerator = fresh(rank, world)
    from accelerate import DistributedDataParallelKwargs
    from accelerate.utils import DDPCommunicationHookType

    def pair_of() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = make_model("mlp")
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    found = {}
    case = PLANS["sharded"]
    shipped = bundle_of(case, make_model("mlp"), world)
    wrapped = accelerator.prepare(*pair_of())
    found["in DDP"] = refusal(lambda: autosync.distribute(wrapped[0], wrapped[1], shipped))
    model, optimizer = autosync.distribute(*pair_of(), shipped)
    late = accelerator.prepare(model, optimizer)[0]
    found["distributed first"] = refusal(lambda: late(torch.zeros(2, 6)))
    autosync.detach(model)
    use_bundle(accelerator, shipped)
    found["late"] = refusal(lambda: accelerator.prepare(*wrapped))
    found["alone"] = refusal(lambda: accelerator.prepare(make_model("mlp")))
    found["alone, too"] = refusal(lambda: accelerator.prepare_model(make_model("mlp")))
    found["optimizer alone"] = refusal(lambda: accelerator.prepare(pair_of()[1]))
    found["two"] = refusal(lambda: accelerator.prepare(*pair_of(), *pair_of()))
    uneven = bundle_of(Case(shares=(0.75, 0.25)), make_model("mlp"), world)
    use_bundle(accelerator, uneven)
    found["uneven"] = refusal(lambda: accelerator.prepare(*pair_of()))
    rounded = bundle_of(Case(shares=(0.5000001, 0.4999999)), make_model("mlp"), world)
    use_bundle(accelerator, rounded)
    found["rounded"] = refusal(lambda: autosync.detach(accelerator.prepare(*pair_of())[0]))
    for name, other_training in (
        ("fully sharded", fsdp2_bundle_of(make_model("mlp"), world)),
        ("placed", placed_bundle_of(make_model("mlp"), world)),
        ("lagging", bundle_of(Case(method="ps", staleness=1), make_model("mlp"), world)),
    ):
        use_bundle(accelerator, other_training)
        found[name] = refusal(lambda: accelerator.prepare(*pair_of()))
    use_bundle(accelerator, f"missing on rank {rank}" if rank else shipped)
    found["missing"] = refusal(lambda: accelerator.prepare(*pair_of()))

    def all_of_it(accelerator: Any) -> None:
        use_bundle(accelerator, shipped)
        accelerator.prepare(*pair_of())

    for name, options in (
        ("bucket", DistributedDataParallelKwargs(bucket_cap_mb=3)),
        ("hook", DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16)),
    ):
        other = fresh(rank, world, kwargs_handlers=[options])
        found[name] = refusal(partial(all_of_it, other))
    return found


def test_wrong_uses_are_refused_with_the_line_to_write(pair: Ranks) -> None:
    expected = {
        "in DDP": "write `use_bundle(accelerator, bundle)`",
        "distributed first": "write `use_bundle(accelerator, bundle)`",
        "late": "Call use_bundle(accelerator, bundle) before accelerator.prepare",
        "alone": "`model, optimizer = accelerator.prepare(model, optimizer)`",
        "alone, too": "`model, optimizer = accelerator.prepare(model, optimizer)`",
        "optimizer alone": "(SGD) was prepared without its model",
        "two": "2 models to train came in one accelerator.prepare()",
        "uneven": "gives ranks the shares (0.75, 0.25)",
        "fully sharded": "`autosync export TUNING --strategy ID` writes one",
        "placed": "and Accelerate takes every rank's parameters for whole",
        "lagging": "Pass allow_inexact=True",
        "missing": "cannot read the bundle 'missing on rank 1'",
        "bucket": "bucket_cap_mb=3 contradicts the plan",
        "hook": "the communication hook 'fp16'",
    }
    for found in pair.run(refused):
        assert found.pop("rounded") == ""
        assert found.keys() == expected.keys()
        for name, words in expected.items():
            assert words in found[name], f"{name}: {found[name]!r}"


def lagged(rank: int, world: int, case: Case, folder: str) -> list[float]:
    """Weights after training, saving and loading."""
    accelerator = fresh(rank, world)
    shipped = bundle_of(case, make_model("mlp"), world)
    use_bundle(accelerator, shipped, allow_inexact=True, on_drift=print)
    plain = make_model("mlp")
    stepping = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(plain, stepping, data_loader(world))
    for inputs, wanted in loader:
        accelerator.backward(nn.functional.mse_loss(model(inputs), wanted))
        accelerator.clip_grad_norm_(model.parameters(), 1e6)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.save_state(folder)
    accelerator.wait_for_everyone()  # rank 0 alone writes the model's file
    accelerator.load_state(folder)
    autosync.detach(plain)
    return torch.cat([p.detach().flatten() for p in plain.parameters()]).tolist()


def test_plans_that_lag_train_are_saved_and_loaded(pair: Ranks, tmp_path: Path) -> None:
    first, second = pair.run(lagged, Case(method="ps", staleness=1), str(tmp_path))
    assert first == second


def clipped_otherwise(rank: int, world: int, case: Case) -> list[str]:
    accelerator, plain = fresh(rank, world, case), make_model("mlp")
    model, optimizer = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
    accelerator.backward(model(torch.ones(2, 6)).square().mean())
    some = list(model.parameters())[:2]
    found = [
        refusal(lambda: accelerator.clip_grad_norm_(model.parameters(), 1.0, norm_type=1)),
        refusal(lambda: accelerator.clip_grad_norm_(some, 1.0)),
        refusal(lambda: accelerator.clip_grad_value_(model.parameters(), 0.1)),
        refusal(lambda: accelerator.join_uneven_inputs([model])),
    ]
    accelerator.join_uneven_inputs([optimizer.optimizer])  # is no model
    optimizer.step()
    autosync.detach(plain)
    return found


def test_other_clipping_is_refused_where_no_rank_holds_all_gradients(pair: Ranks) -> None:
    for norm, some, value, join in pair.run(clipped_otherwise, PLANS["sharded"]):
        assert "the norm is of type 1" in norm
        assert "3 of them were left out" in some
        assert "was read between backward and step()" in value
        assert "join_uneven_inputs" in join
    for found in pair.run(clipped_otherwise, PLANS["all-reduce"]):
        assert ["" if words else "works" for words in found] == ["works"] * 3 + [""]


def alone(rank: int, world: int) -> tuple[list[str], bool]:
    from accelerate import Accelerator

    with_fresh_accelerate(rank, world)
    accelerator = Accelerator()  # without a launcher's device: one process
    said = warned(lambda: use_bundle(accelerator, "none.json"))
    return said, type(accelerator) is Accelerator


def test_one_process_is_told_that_nothing_is_synchronized(pair: Ranks) -> None:
    for said, plain in pair.run(alone):
        assert len(said) == 1
        assert "runs one process" in said[0]
        assert plain


@pytest.mark.parametrize("package", ["accelerate", "transformers"])
def test_a_framework_that_is_not_installed_is_named(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"autosync.frameworks.{package}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(NotSupported, match=f"{module} needs {package}") as refused:
        importlib.import_module(module)
    assert str(refused.value).endswith(f"pip install 'autosync[{package}]'")
