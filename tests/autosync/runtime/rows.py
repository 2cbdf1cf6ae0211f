"""Models whose gradients travel as factors or as touched rows, and how to train them."""

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autosync.bundle import Bundle, make_bundle
from autosync.domain import Domain
from autosync.plan import Plan
from autosync.runtime.attachment import Attachment
from autosync.strategy import (
    Replica,
    Schedule,
    Strategy,
    Synchronizer,
    VariableChoice,
    even_replicas,
    split,
    whole,
)
from tests.autosync.runtime.cases import for_one, graph_of
from tests.autosync.runtime.parts import gradient_of
from tests.autosync.runtime.place import attach_here
from tests.domains import domain_of, grid_cluster

FACTOR_ROWS = 4
TOUCHED_ROWS = 3

Choose = Callable[[int, str, bool, int], tuple[int, Synchronizer]]
"""(shard number, variable, whether it is sparse, world) -> (parts along axis 0, synchronizer)."""


def domain(model: nn.Module, world: int) -> Domain:
    """Tables by type; every matrix beside them may go by its factors."""
    tables = {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
    }
    graph = graph_of(model)
    variables = tuple(
        replace(variable, sparse=True, touched_rows=TOUCHED_ROWS)
        if variable.name in tables
        else replace(variable, factor_rows=FACTOR_ROWS if len(variable.shape) == 2 else 0)
        for variable in graph.variables
    )
    return domain_of(replace(graph, variables=variables), grid_cluster(world))


def plan(
    model: nn.Module,
    world: int,
    choose: Choose,
    schedule: Schedule | None = None,
    shares: tuple[float, ...] = (),
) -> Plan:
    if world == 1:
        return for_one(shipped(model, 2, choose, schedule).plan)
    return shipped(model, world, choose, schedule, shares).plan


def shipped(
    model: nn.Module,
    world: int,
    choose: Choose,
    schedule: Schedule | None = None,
    shares: tuple[float, ...] = (),
) -> Bundle:
    where = domain(model, world)
    choices, shard = [], 0
    for variable in where.graph.variables:
        parts, _ = choose(shard, variable.name, variable.sparse, world)
        cut = split(variable.shape, 0, parts) if parts > 1 else whole(variable.shape)
        shards = []
        for _ in cut.lengths:
            shards.append(choose(shard, variable.name, variable.sparse, world)[1])
            shard += 1
        choices.append(VariableChoice(variable.name, cut, tuple(shards)))
    replicas = tuple(Replica(rank, share) for rank, share in enumerate(shares))
    replicas = replicas or even_replicas(world)
    return make_bundle(Strategy(tuple(choices), replicas, schedule or Schedule()), where)


def attached(
    model: nn.Module, optimizer: Optimizer, made: Plan, max_grad_norm: float | None = None
) -> Attachment:
    names = tuple(name for name, _ in model.named_parameters())
    return attach_here(model, optimizer, made, names, max_grad_norm=max_grad_norm)


def averaged(
    model: nn.Module,
    loss: Callable[[nn.Module, int, int], Tensor],
    iteration: int,
    shares: tuple[float, ...],
) -> list[Tensor | None]:
    """The share-weighted average of the replicas' gradients, sparse where they are, None where no
    replica has any."""
    total: list[Tensor | None] = [None] * len(list(model.parameters()))
    for rank, share in enumerate(shares):
        replica = copy.deepcopy(model)
        replica.zero_grad()
        loss(replica, iteration, rank).backward()
        for place, parameter in enumerate(replica.parameters()):
            if parameter.grad is None:
                continue
            weighted = parameter.grad * share
            before = total[place]
            total[place] = weighted if before is None else before + weighted
    return [g.coalesce() if g is not None and g.is_sparse else g for g in total]


def averaged_all(
    model: nn.Module,
    loss: Callable[[nn.Module, int, int], Tensor],
    iteration: int,
    shares: tuple[float, ...],
) -> list[Tensor]:
    """`averaged`, where some replica has each gradient."""
    found = [g for g in averaged(model, loss, iteration, shares) if g is not None]
    assert len(found) == len(list(model.parameters()))
    return found


def train_alone(
    model: nn.Module,
    optimizer: Optimizer,
    loss: Callable[[nn.Module, int, int], Tensor],
    iterations: int,
    shares: tuple[float, ...],
    max_grad_norm: float | None = None,
) -> None:
    for iteration in range(iterations):
        gradients = averaged(model, loss, iteration, shares)
        for parameter, mean in zip(model.parameters(), gradients, strict=True):
            parameter.grad = mean
        if max_grad_norm:
            clip([gradient_of(p) for p in model.parameters()], max_grad_norm)
        optimizer.step()


def clip(gradients: list[Tensor], max_norm: float) -> None:
    values = [g._values() if g.is_sparse else g for g in gradients]
    norm = torch.cat([v.flatten() for v in values]).norm()
    for value in values:
        value.mul_(min(1.0, max_norm / (float(norm) + 1e-6)))


def train(
    model: nn.Module,
    optimizer: Optimizer,
    loss: Callable[[nn.Module, int, int], Tensor],
    iterations: int,
    rank: int,
) -> None:
    for iteration in range(iterations):
        optimizer.zero_grad()
        loss(model, iteration, rank).backward()
        optimizer.step()


def shares_of(world: int, even: bool) -> tuple[float, ...]:
    if even:
        return (1.0 / world,) * world
    return tuple((rank + 1) / (world * (world + 1) / 2) for rank in range(world))
