"""Models, strategies and the single-process reference that every plan must equal."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from math import inf, isnan
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autosync.cluster import Device
from autosync.domain import Domain
from autosync.extensions.staleness.document import late_by
from autosync.graph import ModelGraph, Operation, Variable
from autosync.plan import Plan, compile_plans, plan_of
from autosync.population import encode
from autosync.runtime.attachment import Attachment
from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.strategy import (
    AllReduce,
    ParameterServer,
    Partition,
    ReduceScatter,
    Replica,
    Schedule,
    Strategy,
    Synchronizer,
    VariableChoice,
    even_replicas,
    pieces,
    split,
    whole,
)
from tests.autosync.runtime.place import attach_here, beside, here
from tests.domains import domain_of, grid_cluster

BATCH = 4
FIFO = Schedule()


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 3, bias=False)
    )


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.repeat(1, 6).view(-1, 1, 6, 6)
        out: Tensor = self.head(torch.relu(self.norm(self.conv(x))).flatten(1))
        return out


class Tied(nn.Module):
    """Two modules share a weight, and a parent reads its child's parameter itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.again = nn.Linear(6, 6)
        self.again.weight = self.first.weight
        self.silent = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.again(torch.tanh(self.first(x))))
        return nn.functional.linear(x, self.silent.weight, self.silent.bias)


class Branching(nn.Module):
    """Which branch runs depends on the batch, so on the rank; one layer is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.left = nn.Linear(6, 3)
        self.right = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.left if float(x.detach().sum()) > 0 else self.right
        out: Tensor = branch(torch.tanh(self.frozen(x)))
        return out


class Opposed(nn.Module):
    """Gradients get ready in opposite orders on even and on odd ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(6, 3)
        self.right = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        branches = (self.left, self.right)
        first, second = branches if dist.get_rank() % 2 else reversed(branches)
        out: Tensor = first(x) + second(x)
        return out


def half() -> nn.Module:
    return nn.Sequential(Cast(), mlp().bfloat16())


class Cast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.bfloat16()


MODELS = {
    "mlp": mlp,
    "cnn": Cnn,
    "tied": Tied,
    "branching": Branching,
    "opposed": Opposed,
    "half": half,
}


@dataclass(frozen=True)
class Case:
    """One training run. method, partition, schedule: words that `strategy` understands."""

    model: str = "mlp"
    optimizer: str = "sgd"
    method: str = "all_reduce"
    partition: str = "whole"
    schedule: Schedule = FIFO
    groups: int = 2
    shares: tuple[float, ...] = ()
    ranks_per_node: int = 1
    iterations: int = 3
    staleness: int = 0


def make_model(name: str) -> nn.Module:
    torch.default_generator.manual_seed(7)  # torch.manual_seed takes 5 ms to note its callers
    return here(MODELS[name]())


def make_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    groups: list[dict[str, Any]] = [
        {"params": parameters[::2], "weight_decay": 0.01},
        {"params": parameters[1::2], "lr": 0.05},
    ]
    if name == "sgd":
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    if name == "plain":
        return torch.optim.SGD(parameters, lr=0.5)
    if name == "adagrad":
        return torch.optim.Adagrad(groups, lr=0.1, initial_accumulator_value=0.1)
    return torch.optim.AdamW(groups, lr=0.01)


def two_optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Most buckets hold variables of both."""
    parameters = list(model.parameters())
    groups: list[dict[str, Any]] = [
        {"params": parameters[:1]},
        {"params": parameters[2:3], "lr": 0.05},
    ]
    rest = [*parameters[1:2], *parameters[3:]]
    return [torch.optim.SGD(groups, lr=0.1, momentum=0.9), torch.optim.AdamW(rest, lr=0.01)]


def graph_of(model: nn.Module) -> ModelGraph:
    variables = tuple(
        Variable(name, tuple(p.shape)) for name, p in model.named_parameters() if p.requires_grad
    )
    count = len(variables)
    operations = tuple(
        Operation(f"op{i}", "linear", 1000, 2000, 64, True, (i - 1,) if i else (), (i,))
        for i in range(count)
    )
    back = tuple(reversed(range(count)))
    return ModelGraph("model", BATCH, operations, variables, back, back, tuple(range(count)))


def domain(model: nn.Module, world: int, ranks_per_node: int = 1) -> Domain:
    """Where they do not come out even, the last node has fewer ranks."""
    cluster = grid_cluster(-(-world // ranks_per_node), ranks_per_node)
    if rest := world % ranks_per_node:
        last = replace(cluster.nodes[-1], devices=(Device("cpu", rest),))
        cluster = replace(cluster, nodes=(*cluster.nodes[:-1], last))
    return domain_of(graph_of(model), cluster)


def partition_of(shape: tuple[int, ...], word: str) -> Partition:
    if word == "even" and shape[-1] > 1:
        return split(shape, len(shape) - 1, 2)
    if word == "uneven" and shape[0] > 2:
        return split(shape, 0, 3)
    if word == "pieces":
        return pieces(shape, 11)
    return whole(shape)


def synchronizer(method: str, shard: int, groups: int, world: int) -> Synchronizer:
    group = shard % groups
    match method:
        case "all_reduce":
            return AllReduce(group)
        case "ring":
            return AllReduce(group, device_order=tuple(reversed(range(world))))
        case "tree":
            return AllReduce(group, "tree")
        case "hierarchical":
            return AllReduce(group, "hierarchical")
        case "teams":
            return AllReduce(shard, "hierarchical") if shard % 2 else AllReduce(shard)
        case "ps":
            return ParameterServer(group % world, group)
        case "hierarchical_ps":
            return ParameterServer(group % world, group, hierarchical=True)
        case "byteps":
            return ParameterServer(group % world, group, returns_gradients=True)
        case "hierarchical_byteps":
            return ParameterServer(group % world, group, True, returns_gradients=True)
        case "rs":
            return ReduceScatter(group)
        case "zero":
            return ReduceScatter(group, sharded_update=True)
    choices = ("all_reduce", "ps", "rs", "zero")
    number = shard % 4
    made = synchronizer(choices[number], number, 4, world)
    return replace(made, group=number)


def strategy(case: Case, graph: ModelGraph, world: int) -> Strategy:
    choices, shard = [], 0
    for variable in graph.variables:
        partition = partition_of(variable.shape, case.partition)
        count = len(partition.lengths)
        shards = tuple(
            synchronizer(case.method, shard + i, case.groups, world) for i in range(count)
        )
        choices.append(VariableChoice(variable.name, partition, shards))
        shard += count
    replicas = even_replicas(world)
    if case.shares:
        replicas = tuple(Replica(rank, share) for rank, share in enumerate(case.shares))
    return Strategy(tuple(choices), replicas, case.schedule, extensions=late_by(case.staleness))


def for_one(made: Plan) -> Plan:
    """The same plan with rank 0 alone: every message has a team of one. A cluster has two devices
    at least, so no strategy compiles to it."""
    messages = tuple(replace(message, root=min(message.root, 0)) for message in made.messages)
    return replace(made, shares=(1.0,), teams=(((0,),),) * len(made.teams), messages=messages)


def plan(case: Case, model: nn.Module, world: int) -> Plan:
    if world == 1:
        return for_one(plan(case, model, 2))
    where = domain(model, world, case.ranks_per_node)
    population = encode([strategy(case, where.graph, world)], where)
    return plan_of(compile_plans(population, where), population, 0, where)


def data(iteration: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * iteration + rank)
    return torch.randn(BATCH, 6, generator=generator), torch.randn(BATCH, 3, generator=generator)


def loss_of(model: nn.Module, iteration: int, rank: int) -> Tensor:
    inputs, wanted = (beside(model, tensor) for tensor in data(iteration, rank))
    return nn.functional.mse_loss(model(inputs).float(), wanted)


def reference_gradients(
    model: nn.Module, iteration: int, shares: tuple[float, ...]
) -> list[Tensor | None]:
    """The share-weighted average, or None where no replica has any; buffers become replica 0's."""
    trained = [p for p in model.parameters() if p.requires_grad]
    total: list[Tensor | None] = [None] * len(trained)
    has_buffers = any(True for _ in model.buffers())
    for rank, share in enumerate(shares):
        replica = copy.deepcopy(model) if rank and has_buffers else model
        gradients = torch.autograd.grad(
            loss_of(replica, iteration, rank),
            [p for p in replica.parameters() if p.requires_grad],
            allow_unused=True,
        )
        for place, gradient in enumerate(gradients):
            if gradient is not None:
                before = total[place]
                total[place] = gradient * share + (0 if before is None else before)
    return total


def train_reference(case: Case, world: int) -> nn.Module:
    """Made once for all cases that it is the same for."""
    shares = case.shares or (1.0 / world,) * world
    return _trained_alone(case.model, case.optimizer, case.iterations, shares)


@cache
def _trained_alone(
    name: str, optimizer_name: str, iterations: int, shares: tuple[float, ...]
) -> nn.Module:
    model = make_model(name)
    optimizer = make_optimizer(optimizer_name, model)
    for iteration in range(iterations):
        set_reference_gradients(model, iteration, shares)
        optimizer.step()
    return model


def set_reference_gradients(model: nn.Module, iteration: int, shares: tuple[float, ...]) -> None:
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = reference_gradients(model, iteration, shares)
    for p, gradient in zip(trained, gradients, strict=True):
        p.grad = gradient


def iterate(
    network: nn.Module, optimizer: torch.optim.Optimizer, rank: int, iterations: Iterable[int]
) -> None:
    for iteration in iterations:
        optimizer.zero_grad()
        loss_of(network, iteration, rank).backward()
        optimizer.step()


def attached(
    case: Case,
    world: int,
    trace: ExecutionTrace | None = None,
    *,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    max_grad_norm: float | None = None,
) -> tuple[nn.Module, torch.optim.Optimizer, Attachment]:
    model = model or make_model(case.model)
    optimizer = optimizer or make_optimizer(case.optimizer, model)
    names = tuple(name for name, p in model.named_parameters() if p.requires_grad)
    made = plan(case, model, world)
    attachment = attach_here(
        model, optimizer, made, names, max_grad_norm=max_grad_norm, trace=trace
    )
    return model, optimizer, attachment


def gap(one: Tensor, other: Tensor) -> float:
    """Of the elements that differ most; infinite where one is not a number: Python's `max` passes
    over a NaN that does not come first."""
    found = float((one - other).detach().abs().max())
    return inf if isnan(found) else found


def worst_difference(model: nn.Module, other: nn.Module) -> float:
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return max(gap(a, b) for a, b in pairs)


def weights(model: nn.Module) -> Tensor:
    """All parameters in one flat tensor."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])
