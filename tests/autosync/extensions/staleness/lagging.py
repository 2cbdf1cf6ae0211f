"""What tests of both forms of staleness share."""

import os

import torch
from torch import nn

import autosync
from autosync.bundle import Bundle, make_bundle
from autosync.extensions.staleness.document import late_by
from tests.autosync.runtime.cases import (
    Case,
    domain,
    loss_of,
    make_model,
    make_optimizer,
    strategy,
)


def lagging(case: Case, world: int, staleness: int, model: nn.Module | None = None) -> Bundle:
    where = domain(model or make_model(case.model), world)
    return make_bundle(strategy(case, where.graph, world).carrying(*late_by(staleness)), where)


def distributed(
    rank: int, world: int, case: Case, staleness: int, model: nn.Module | None = None
) -> tuple[nn.Module, torch.optim.Optimizer]:
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = model or make_model(case.model)
    optimizer = make_optimizer(case.optimizer, model)
    return autosync.distribute(
        model, optimizer, lagging(case, world, staleness), allow_inexact=True
    )


def iterate(
    rank: int, model: nn.Module, optimizer: torch.optim.Optimizer, iterations: range
) -> None:
    for iteration in iterations:
        optimizer.zero_grad()
        loss_of(model, iteration, rank).backward()
        optimizer.step()
