"""What training scripts do, under plans whose messages go over NCCL."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import autosync
from autosync.domain import Domain
from autosync.search.designs.torch_engines import fsdp2, zero2
from autosync.strategy import Strategy
from tests.autosync.runtime import beside_ddp, test_detachment, test_distribute
from tests.autosync.runtime.cases import (
    Case,
    Cnn,
    attached,
    loss_of,
    make_model,
    make_optimizer,
    worst_difference,
)
from tests.autosync.runtime.device.gpus import on_gpus
from tests.autosync.runtime.distributing import distributed, each_engine
from tests.autosync.runtime.execution import test_pending, test_training
from tests.autosync.runtime.place import HERE, here
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.torch_engines import test_torch_engines
from tests.autosync.runtime.training import CASES, each_case
from tests.autosync.runtime.updates import test_optimizer_state

WAYS = (CASES[0], CASES[2], CASES[5])
"""Every replica updates, shards and all of them mixed; the last two run into the next forward."""

SCRIPTS = (
    test_training.scheduled,
    test_training.zeroed_at_once,
    test_training.clipped,
    test_training.accumulated,
    test_training.checkpointed,
    test_training.scaled,
    test_optimizer_state.evaluated,
    test_optimizer_state.saved_at_once,
    test_optimizer_state.resumed,
)


@on_gpus
@pytest.mark.parametrize("function", SCRIPTS, ids=lambda function: function.__name__)
def test_clipping_and_saving_and_resuming_on_gpus(
    nccl_pair: Ranks, function: Callable[..., float]
) -> None:
    each_case(nccl_pair, function, *WAYS)


@on_gpus
def test_clipping_where_a_rank_owns_nothing(nccl_three: Ranks) -> None:
    each_case(nccl_three, test_training.clipped, Case(optimizer="adamw", method="ps"))


@on_gpus
def test_module_buffers(nccl_pair: Ranks) -> None:
    each_case(
        nccl_pair, test_training.buffers_in_step, *(replace(case, model="cnn") for case in WAYS[:2])
    )


@on_gpus
def test_scalers(nccl_pair: Ranks) -> None:
    for make in (test_pending.fused, test_pending.plain):
        for differences in nccl_pair.run(test_pending.scaled, make, "optimizer"):
            assert max(differences) < 3e-6, make
    for differences in nccl_pair.run(test_pending.unscaled_by_hand):
        assert max(differences) < 3e-6


@on_gpus
@pytest.mark.parametrize("change", [test_pending.clip_norm, test_pending.replace_unread])
def test_gradients_that_a_script_reads(nccl_pair: Ranks, change: test_pending.Change) -> None:
    for differences in nccl_pair.run(test_pending.changed, test_pending.DEFERRED, change):
        assert max(differences) < 3e-6


def autocast(rank: int, world: int, case: Case) -> float:
    """As under torch's DDP. In host memory autocast is to bf16, which needs no scaler."""
    kind = HERE.device.type
    low = torch.float16 if kind == "cuda" else torch.bfloat16
    model, alone = make_model(case.model), make_model(case.model)
    _, optimizer, attachment = attached(
        case, world, model=model, optimizer=make_optimizer(case.optimizer, model)
    )
    theirs = make_optimizer(case.optimizer, alone)
    for network, update in ((model, optimizer), (DistributedDataParallel(alone), theirs)):
        scaler = torch.amp.GradScaler(kind, init_scale=64.0, enabled=low is torch.float16)
        for iteration in range(case.iterations):
            update.zero_grad()
            with torch.autocast(kind, low):
                loss = loss_of(network, iteration, rank)
            scaler.scale(loss).backward()
            scaler.step(update)
            scaler.update()
    attachment.detach()
    return worst_difference(model, alone)


@on_gpus
def test_autocast(nccl_pair: Ranks) -> None:
    each_case(nccl_pair, autocast, *WAYS)


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class CentredOverRanks(nn.Module):
    """In the place of torch's SyncBatchNorm, which runs on GPUs alone: collectives of the script's
    own in the forward and the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        mean: Tensor = SumOverRanks.apply(x.mean((0, 2, 3))) / dist.get_world_size()  # type: ignore[no-untyped-call] # torch's
        return x - mean[:, None, None]


def synchronized_norms() -> nn.Module:
    torch.manual_seed(7)
    model = Cnn()
    if HERE.device.type == "cuda":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return here(converted)
    model.norm = CentredOverRanks()  # type: ignore[assignment] # any module does
    return model


def nothing(model: nn.Module, moment: str, iteration: int) -> None:
    """What the script does beside training."""


def with_synchronized_norms(rank: int, world: int, case: Case) -> float:
    """Beside torch's DDP."""
    return beside_ddp.beside_ddp(rank, world, case, lambda rank: nothing, synchronized_norms)


@on_gpus
def test_sync_batch_norm_of_the_scripts_own(nccl: Ranks) -> None:
    """By SGD: a bias in front of a norm has a gradient of rounding errors alone, which Adam would
    make steps of."""
    cases = [replace(case, model="cnn", optimizer="sgd") for case in WAYS[:2]]
    each_case(nccl, with_synchronized_norms, *cases)


# --- the two lines, on process groups of their own


MASK_ELEMENTS = 1 << 23
"""Of a module buffer that is under way for many milliseconds."""


def detached_at_once(rank: int, world: int) -> list[float]:
    """The extremes of a large module buffer that each rank has set before its last backward pass,
    taken behind `detach`, which ends the process groups."""
    model = make_model("mlp")
    mask = torch.zeros(MASK_ELEMENTS, device=HERE.device)
    model.register_buffer("mask", mask)
    optimizer = make_optimizer("sgd", model)
    distributed(rank, world, Case(), model, optimizer)
    for iteration in range(2):  # the first one compares values, and waits
        optimizer.zero_grad()
        mask.fill_(1.0 + rank + iteration)
        loss_of(model, iteration, rank).backward()
        optimizer.step()
    autosync.detach(model)
    return [float(mask.min()), float(mask.max())]


@on_gpus
def test_module_buffers_arrive_before_process_groups_end(nccl_pair: Ranks) -> None:
    assert nccl_pair.run(detached_at_once) == [[2.0, 2.0]] * 2


@on_gpus
@each_engine
def test_distribute_and_detach(nccl_pair: Ranks, case: Case) -> None:
    """Three stages on one model, of which one is torch's DDP; checkpoints are alike between."""
    for far, between, again in nccl_pair.run(test_detachment.two_stages, case):
        assert far < 3e-6
        assert between < 3e-6
        assert "is not distributed" in again


@on_gpus
def test_a_bundle_runs_its_plan_on_three_ranks(nccl_three: Ranks) -> None:
    case = Case(method="ps")
    given = test_distribute.shipped(case, 3)
    for kind, _ in nccl_three.run(test_distribute.train, case, given, "host{rank}"):
        assert kind == "Sequential"


@on_gpus
@pytest.mark.parametrize("make", [fsdp2, zero2])
def test_torchs_own_engines(nccl: Ranks, make: Callable[[Domain], Strategy]) -> None:
    given = test_torch_engines.bundle(make, nccl.world)
    for far, kind in nccl.run(test_torch_engines.beside_ddp, given, "adamw"):
        assert kind == "fsdp"
        assert far < 3e-6
