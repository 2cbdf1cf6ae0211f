"""A model whose modules can be placed, with its recorded graph, for tests of placements."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from autosync.cluster import Device
from autosync.domain import Domain, Optimizer
from autosync.importing.importer import import_module
from tests.domains import chain_graph, domain_of, grid_cluster

FEATURES, ROWS = 6, 12
MEGABYTE = 4 * 250_000
LAYERS = 4
OUTPUT_BYTES = 4096


class Wide(nn.Module):
    """A table, a block, a module that runs twice, one that mixes samples and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 8)
        self.table = nn.Embedding(ROWS, 8)
        self.block = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.twice = nn.Linear(8, 8)
        self.scale = nn.LayerNorm(8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = (x[:, 0].abs() * 5).long().clamp(max=ROWS - 1)
        hidden = torch.tanh(self.first(x)) + self.table(rows)
        hidden = self.twice(torch.tanh(self.twice(hidden)))
        hidden = hidden + self.block(self.scale(hidden))
        out: Tensor = self.last(hidden)
        return out


class Listed(nn.Module):
    """Layers in a list, which is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(3))
        self.last = nn.Linear(FEATURES, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body:
            x = torch.relu(layer(x))
        out: Tensor = self.last(x)
        return out


class SparseTable(nn.Module):
    """A table with sparse gradients before a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 8, sparse=True)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = (x.abs() * 5).long().clamp(max=ROWS - 1)
        out: Tensor = self.last(self.table(rows).mean(1))
        return out


class Mixing(nn.Module):
    """`norm` takes statistics over the batch, `centred` subtracts its mean, and `again` shares the
    weight of `tied`."""

    def __init__(self) -> None:
        super().__init__()
        self.tied = nn.Linear(FEATURES, FEATURES)
        self.norm = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.BatchNorm1d(FEATURES))
        self.centred = Centred()
        self.again = nn.Linear(FEATURES, FEATURES)
        self.again.weight = self.tied.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.again(self.centred(self.norm(torch.tanh(self.tied(x)))))
        return out


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x - x.mean(0, keepdim=True))
        return out


def loss(out: Tensor, x: Tensor) -> Tensor:
    return (out.sum(1) - x.sum(1)).square().mean()


def recorded(model: nn.Module, world: int, batch: int = 4) -> Domain:
    """The domain of a model on `world` nodes; every operation takes a millisecond."""
    graph = import_module(model, (torch.zeros(batch, FEATURES),), loss, name="m", batch_size=batch)
    return domain_of(graph, grid_cluster(world))


def heavy_layers(
    slowdowns: tuple[float, ...] = (1.0, 1.0),
    gbps: tuple[float, ...] | float = 1.0,
    memory_gb: float | None = None,
) -> Domain:
    """Four layers (`layer0`) of a megabyte each, a millisecond forward and two backward; Adam."""
    cluster = grid_cluster(len(slowdowns), 1, gbps)
    nodes = tuple(
        replace(node, devices=(Device("cpu", slowdown=slow, memory_gb=memory_gb),))
        for node, slow in zip(cluster.nodes, slowdowns, strict=True)
    )
    graph = chain_graph(((1000, 250),) * LAYERS)
    operations = tuple(
        replace(each, name=f"layer{index}.linear") for index, each in enumerate(graph.operations)
    )
    variables = tuple(
        replace(each, name=f"layer{index}.weight") for index, each in enumerate(graph.variables)
    )
    graph = replace(graph, operations=operations, variables=variables)
    return domain_of(graph, replace(cluster, nodes=nodes), 1e-3, Optimizer("adamw", True, 2))
