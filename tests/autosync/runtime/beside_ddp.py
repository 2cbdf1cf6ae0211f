"""A script that does something unusual, under a plan and under torch's DDP."""

import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autosync.runtime.execution.engine import Engine
from autosync.runtime.layout.records import MessageRecord
from autosync.strategy import Schedule
from tests.autosync.runtime.cases import (
    Case,
    attached,
    loss_of,
    make_model,
    make_optimizer,
    worst_difference,
)

OVERLAP = Schedule("priority", slice_bytes=100, overlap_forward=True)
PLANS = {
    "all-reduce": Case(optimizer="adamw"),
    "reduce-scatter": Case(optimizer="sgd", method="rs", partition="even", schedule=OVERLAP),
    "zero": Case(optimizer="adamw", method="zero", partition="even", schedule=OVERLAP),
    "server": Case(optimizer="adamw", method="ps", schedule=OVERLAP),
}
"""One of each way to update; all but the first run into the next forward pass."""

Script = Callable[[nn.Module, str, int], None]
"""Called with the model, the moment ("gradients" are complete, or "stepped") and the iteration."""


def beside_ddp(
    rank: int,
    world: int,
    case: Case,
    make: Callable[[int], Script],
    build: Callable[[], nn.Module] | None = None,
) -> float:
    """The worst difference from DDP of a script that `make` makes for a rank. build: the model,
    by default the case's. Values come late, so who reads them too early reads old ones."""
    ours, plain = (build() if build else make_model(case.model) for _ in range(2))
    model, optimizer, attachment = attached(
        case, world, model=ours, optimizer=make_optimizer(case.optimizer, ours)
    )
    complete_late(attachment.engine)
    follow(model, optimizer, case, rank, make(rank))
    attachment.detach()
    network = DistributedDataParallel(plain)
    follow(network, make_optimizer(case.optimizer, plain), case, rank, make(rank))
    return worst_difference(model, plain)


def complete_late(engine: Engine) -> None:
    unpack = engine.completion.unpack

    def late(record: MessageRecord) -> None:
        time.sleep(0.002)
        unpack(record)

    engine.completion.__dict__["unpack"] = late


def follow(
    network: nn.Module, optimizer: torch.optim.Optimizer, case: Case, rank: int, script: Script
) -> None:
    model = network.module if isinstance(network, DistributedDataParallel) else network
    for iteration in range(case.iterations):
        loss = loss_of(network, iteration, rank)
        optimizer.zero_grad()
        loss.backward()
        script(model, "gradients", iteration)
        optimizer.step()
        script(model, "stepped", iteration)
