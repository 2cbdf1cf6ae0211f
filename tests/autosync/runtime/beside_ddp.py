"""A script that does something unusual, under a plan and under torch's DDP."""

import time
from collections.abc import Callable
from functools import cache

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autosync.runtime.execution.engine import Engine
from autosync.runtime.layout.records import MessageRecord
from tests.autosync.runtime.cases import (
    Case,
    attached,
    loss_of,
    make_model,
    make_optimizer,
    worst_difference,
)
from tests.autosync.runtime.training import OVERLAP

PLANS = {
    "all-reduce": Case(optimizer="adamw"),
    "reduce-scatter": Case(optimizer="sgd", method="rs", partition="even", schedule=OVERLAP),
    "zero": Case(optimizer="adamw", method="zero", partition="even", schedule=OVERLAP),
    "server": Case(optimizer="adamw", method="ps", schedule=OVERLAP),
}
"""One of each way to update; all but the first run into the next forward pass."""

Script = Callable[[nn.Module, str, int], None]
"""Called with the model, the moment ("gradients" are complete, or "stepped") and the iteration."""


def make_mlp() -> nn.Module:
    return make_model("mlp")


def beside_ddp(
    rank: int,
    world: int,
    case: Case,
    make: Callable[[int], Script],
    build: Callable[[], nn.Module] = make_mlp,
) -> float:
    """The worst difference from DDP of a script that `make` makes for a rank. build: the model.
    Values come late, so who reads them too early reads old ones."""
    ours = build()
    model, optimizer, attachment = attached(
        case, world, model=ours, optimizer=make_optimizer(case.optimizer, ours)
    )
    complete_late(attachment.engine)
    follow(model, optimizer, case.iterations, rank, make(rank))
    attachment.detach()
    return worst_difference(model, under_ddp(rank, case.optimizer, case.iterations, make, build))


@cache
def under_ddp(
    rank: int,
    optimizer: str,
    iterations: int,
    make: Callable[[int], Script],
    build: Callable[[], nn.Module],
) -> nn.Module:
    """Made once for all plans."""
    plain = build()
    network = DistributedDataParallel(plain)
    follow(network, make_optimizer(optimizer, plain), iterations, rank, make(rank))
    return plain


def complete_late(engine: Engine) -> None:
    unpack = engine.completion.unpack

    def late(record: MessageRecord) -> None:
        time.sleep(0.002)
        unpack(record)

    engine.completion.__dict__["unpack"] = late


def follow(
    network: nn.Module, optimizer: torch.optim.Optimizer, iterations: int, rank: int, script: Script
) -> None:
    model = network.module if isinstance(network, DistributedDataParallel) else network
    for iteration in range(iterations):
        loss = loss_of(network, iteration, rank)
        optimizer.zero_grad()
        loss.backward()
        script(model, "gradients", iteration)
        optimizer.step()
        script(model, "stepped", iteration)
