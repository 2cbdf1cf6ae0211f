"""The entry point: what fits runs the plan, what does not falls back to DDP, what dies is named."""

import os
import subprocess
import sys
import warnings
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import autosync
from autosync.bundle import Bundle, make_bundle, with_extension
from autosync.errors import InvalidInput, NotSupported
from autosync.extensions.compilation.document import CompiledRegions
from autosync.runtime.attached_models import ATTACHED
from autosync.runtime.attachment import attach
from tests.autosync.runtime.cases import (
    Case,
    attached,
    domain,
    iterate,
    loss_of,
    make_model,
    make_optimizer,
    plan,
    set_reference_gradients,
    strategy,
    train_reference,
    worst_difference,
)
from tests.autosync.runtime.distributing import DDP, bundle_of, refusal
from tests.autosync.runtime.ranks import Ranks


def shipped(case: Case, world: int) -> Bundle:
    return bundle_of(case, make_model(case.model), world)


def train(rank: int, world: int, case: Case, given: Bundle, host: str) -> tuple[str, list[str]]:
    os.environ["AUTOSYNC_HOST"] = host.format(rank=rank)
    model = make_model(case.model)
    optimizer = make_optimizer(case.optimizer, model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        network, optimizer = autosync.distribute(model, optimizer, given)
    iterate(network, optimizer, rank, range(case.iterations))
    if not isinstance(network, DistributedDataParallel):
        model.state_dict()
    assert worst_difference(model, train_reference(case, world)) < 2e-6
    return type(network).__name__, [str(warning.message) for warning in caught]


def clipped(rank: int, world: int, case: Case, given: Bundle, host: str) -> list[float]:
    """By DDP, because the bundle says so or because it does not fit: like torch's own clipping. The
    optimizer is given as it is, then as a list of one."""
    os.environ["AUTOSYNC_HOST"] = host.format(rank=rank)
    found = []
    for scaled in (False, True):
        model = make_model(case.model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=scaled)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            held: Optimizer | list[Optimizer] = [optimizer] if scaled else optimizer
            network, _ = autosync.distribute(model, held, given, max_grad_norm=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=scaled)
        alone = make_model(case.model)
        single = torch.optim.AdamW(alone.parameters(), lr=0.01)
        for iteration in range(case.iterations):
            optimizer.zero_grad()
            scaler.scale(loss_of(network, iteration, rank)).backward()
            scaler.step(optimizer)
            scaler.update()
            set_reference_gradients(alone, iteration, (1 / world,) * world)
            torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.05)
            single.step()
        if not isinstance(network, DistributedDataParallel):
            model.state_dict()
        found.append(worst_difference(model, alone))
    return found


@pytest.mark.parametrize("method", ["all_reduce", "zero", "ddp"])
@pytest.mark.parametrize("host", ["host{rank}", "one"])
def test_clipping_does_not_depend_on_what_synchronizes(pair: Ranks, method: str, host: str) -> None:
    case = DDP if method == "ddp" else Case(method=method)
    for differences in pair.run(clipped, case, shipped(case, 2), host):
        assert max(differences) < 3e-6, differences


def clipped_in_closures(rank: int, world: int, case: Case, given: Bundle, host: str) -> float:
    """The gradients come within `step()`, where torch runs a closure behind its hooks."""
    os.environ["AUTOSYNC_HOST"] = host.format(rank=rank)
    model, alone = make_model(case.model), make_model(case.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    single = torch.optim.SGD(alone.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network, _ = autosync.distribute(model, optimizer, given, max_grad_norm=0.05)
    norms = []
    for iteration in range(case.iterations):

        def closure(iteration: int = iteration) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(network, iteration, rank)
            loss.backward()
            return loss

        optimizer.step(closure)
        set_reference_gradients(alone, iteration, (1 / world,) * world)
        norms.append(float(torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.05)))
        single.step()
    if not isinstance(network, DistributedDataParallel):
        model.state_dict()
    assert max(norms) > 0.05
    return worst_difference(model, alone)


@pytest.mark.parametrize("method", ["all_reduce", "ddp"])
@pytest.mark.parametrize("host", ["host{rank}", "one"])
def test_gradients_of_a_closure_are_clipped(pair: Ranks, method: str, host: str) -> None:
    case = DDP if method == "ddp" else Case(method=method)
    for difference in pair.run(clipped_in_closures, case, shipped(case, 2), host):
        assert difference < 3e-6


class WithLoss(torch.nn.Module):
    """What is often imported: it computes the loss, and holds the model that is distributed."""

    def __init__(self, *models: torch.nn.Module) -> None:
        super().__init__()
        self.model = models[0]
        self.others = torch.nn.ModuleList(models[1:])


def wrapping(case: Case, *models: torch.nn.Module) -> Bundle:
    """For the model that is imported."""
    where = domain(WithLoss(*models), 2)
    assert where.graph.variables[0].name == "model.0.weight"
    return make_bundle(strategy(case, where.graph, 2), where)


def test_fitting_bundles_run_their_plans(pair: Ranks) -> None:
    owned, sharded = Case(method="ps"), Case(method="zero")
    for case, given, name in (
        (owned, shipped(owned, 2), "Sequential"),
        (DDP, shipped(DDP, 2), "DistributedDataParallel"),
        (sharded, wrapping(sharded, make_model("mlp")), "Sequential"),
    ):
        assert pair.run(train, case, given, "host{rank}") == [(name, [])] * 2


def test_bundles_of_other_models_and_jobs_fall_back_to_ddp(pair: Ranks) -> None:
    case = Case()
    fits = shipped(case, 2)
    other = replace(fits.variables[1], shape=(11,))
    frozen = replace(fits, variables=(*fits.variables, replace(other, name="gone.weight")))
    both = wrapping(case, make_model("mlp"), make_model("mlp"))
    regions = with_extension(frozen, CompiledRegions((("gone",),)))  # DDP runs without them
    for given, host, words in (
        (shipped(case, 4), "host{rank}", "for 4 ranks, this job has 2"),
        (fits, "one", "ranks 0 and 1 share a host here, but not in the bundle"),
        (replace(fits, variables=(fits.variables[0], other)), "h{rank}", "has shape (10,)"),
        (frozen, "h{rank}", "'gone.weight' is missing"),
        (regions, "h{rank}", "'gone.weight' is missing"),
        (both, "host{rank}", "'0.weight' could be 'model.0.weight' or 'others.0.0.weight'"),
    ):
        for kind, (warning,) in pair.run(train, case, given, host):
            assert kind == "DistributedDataParallel"
            assert words in warning


def unfitting(rank: int, world: int, given: Bundle) -> str:
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = make_model("mlp")
    return refusal(lambda: autosync.distribute(model, make_optimizer("sgd", model), given))


def test_ddp_does_not_take_the_place_of_uneven_shares(pair: Ranks) -> None:
    """It would average evenly what `ShareSampler` deals unevenly."""
    fits = shipped(Case(shares=(0.75, 0.25)), 2)
    other = replace(fits.variables[1], shape=(11,))
    for said in pair.run(unfitting, replace(fits, variables=(fits.variables[0], other))):
        assert "has shape (10,)" in said
        assert "the shares (0.75, 0.25) of the batch" in said


def differing(rank: int, world: int) -> str:
    model = make_model("mlp")
    optimizer = make_optimizer("sgd", model)
    names = tuple(name for name, _ in model.named_parameters())
    mine = plan(Case(groups=2 + rank), model, world)
    with pytest.raises(InvalidInput, match="unlike rank 0") as caught:
        attach(model, optimizer, mine, names)
    return str(caught.value)


def test_differing_plans_are_refused_on_every_rank(pair: Ranks) -> None:
    assert len(pair.run(differing)) == 2


class HomeMade(torch.optim.SGD):
    """Not known to be elementwise."""


def refused(rank: int, world: int) -> list[bool]:
    answers = []
    for method in ("all_reduce", "zero", "ps", "mixed"):
        model = make_model("mlp")
        optimizer = HomeMade(model.parameters(), lr=0.1)
        try:
            _, _, attachment = attached(
                Case(method=method), world, model=model, optimizer=optimizer
            )
            attachment.detach()
            answers.append(False)
        except NotSupported as error:
            answers.append("HomeMade" in str(error))
    return answers


def test_owned_and_sharded_updates_refuse_other_optimizers(pair: Ranks) -> None:
    assert pair.run(refused) == [[False, True, True, True]] * 2


def without_room(rank: int, world: int, given: Bundle, what: str) -> tuple[str, bool]:
    """Rank 1 is out of memory in `what`, of `distribute`: what the call says, and whether model and
    optimizer are plain behind it."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = make_model("mlp")
    optimizer = make_optimizer("sgd", model)
    said, target = "", f"autosync.runtime.distributed.{what}"
    with ExitStack() as patched:
        if rank:
            patched.enter_context(patch(target, side_effect=MemoryError("full")))
        try:
            autosync.distribute(model, optimizer, given)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
    followed = ATTACHED.plan_of(model) is not None or type(optimizer) is not torch.optim.SGD
    return said, not followed and not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize("case", [Case(), Case(method="zero"), Case(method="ps"), DDP])
def test_no_rank_trains_where_one_lacks_room_beside_the_plan(pair: Ranks, case: Case) -> None:
    other, full = pair.run(without_room, shipped(case, 2), "attach_beside")
    assert full == ("MemoryError: full", True)
    assert other[0].startswith("InvalidInput: rank 1 cannot begin: MemoryError: full")
    assert other[1]


def test_importing_autosync_does_not_import_torch() -> None:
    code = "import sys, autosync; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def ill_given(rank: int, world: int, given: Bundle) -> dict[str, str]:
    model = make_model("mlp")
    optimizer = make_optimizer("sgd", model)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)

    def said(optimizer: Any, max_grad_norm: float | None = None) -> str:
        return refusal(
            lambda: autosync.distribute(model, optimizer, given, max_grad_norm=max_grad_norm)
        )

    return {
        "parameters": said(model.parameters()),
        "scheduler": said(scheduler),
        "none": said([]),
        "negative": said(optimizer, -1.0),
        "not a number": said(optimizer, float("nan")),
    }


def test_wrong_types_of_optimizer_and_norm_are_named(pair: Ranks) -> None:
    for found in pair.run(ill_given, shipped(Case(), 2)):
        assert "optimizer is a Parameter" in found["parameters"]
        assert "optimizer is a ConstantLR" in found["scheduler"]
        assert "optimizer is an empty list" in found["none"]
        assert "max_grad_norm is -1.0" in found["negative"]
        assert "max_grad_norm is nan" in found["not a number"]
