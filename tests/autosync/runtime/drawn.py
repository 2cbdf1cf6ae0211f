"""Small models of every kind, in float64, and the single-process training of each."""

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync.domain import Domain
from autosync.importing import import_module
from autosync.plan import Plan
from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.runtime.layout.records import issue_order
from tests.autosync.runtime.cases import gap, weights
from tests.autosync.runtime.parts import gradient_of
from tests.autosync.runtime.place import attach_here, beside, here
from tests.autosync.runtime.traces import disorder
from tests.domains import domain_of, grid_cluster

BATCH = 4
WORDS = 19
ITERATIONS = 3


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 5, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(5)
        self.second = nn.Conv2d(5, 3, 3)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        out: Tensor = self.head(torch.relu(self.second(x)).flatten(1))
        return out


class Transformer(nn.Module):
    """One block of attention and one of linear layers, both with norms and skips."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(8), nn.LayerNorm(8)
        self.queries, self.keys, self.values = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.join = nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 13), nn.Linear(13, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        y = functional.scaled_dot_product_attention(self.queries(y), self.keys(y), self.values(y))
        x = x + self.join(y)
        x = x + self.down(functional.gelu(self.up(self.between(x))))
        out: Tensor = self.head(x.mean(1))
        return out


class Lookup(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 6, sparse=sparse)
        self.places = nn.Embedding(7, 6, sparse=sparse)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.words(x).sum(1) * self.places(x % 7).sum(1)))
        return out


class Shared(nn.Module):
    """A table that is also the last layer's weight, and a layer that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 6)
        self.twice = nn.Linear(6, 6)
        self.head = nn.Linear(6, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x).mean(1)
        out: Tensor = self.head(torch.tanh(self.twice(torch.tanh(self.twice(x)))))
        return out


MODELS = {
    "convolutions": Convolutions,
    "transformer": Transformer,
    "dense_lookup": lambda: Lookup(sparse=False),
    "sparse_lookup": lambda: Lookup(sparse=True),
    "shared": Shared,
}
KINDS = tuple(
    (model, optimizer)
    for model in MODELS
    for optimizer in ("momentum", "adamw")
    if (model, optimizer) != ("sparse_lookup", "adamw")  # torch's AdamW takes no sparse gradients
)


@dataclass(frozen=True)
class Drawn:
    """One training run. origin: which strategy the plan is of, for messages."""

    model: str
    optimizer: str
    plan: Plan
    origin: str


@dataclass(frozen=True)
class Trained:
    """weights: of one rank. difference: from the reference. disorder: what the trace shows that
    the plan does not say."""

    weights: list[float]
    difference: float
    disorder: str


def make_model(name: str) -> nn.Module:
    torch.manual_seed(11)
    return MODELS[name]().double()


def make_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    # torch builds sparse tensors without saying whether it checks them
    torch.sparse.check_sparse_tensor_invariants.disable()
    parameters = list(model.parameters())
    groups: list[dict[str, Any]] = [
        {"params": parameters[:1], "lr": 0.03},
        {"params": parameters[1:]},
    ]
    if name == "momentum":
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    return torch.optim.AdamW(groups, lr=0.01)


def inputs(model: str, iteration: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * iteration + rank)
    if model == "convolutions":
        return torch.randn(BATCH, 2, 4, 4, generator=generator, dtype=torch.float64)
    if model == "transformer":
        return torch.randn(BATCH, 5, 8, generator=generator, dtype=torch.float64)
    return torch.randint(0, WORDS, (BATCH, 5), generator=generator)


def loss(outputs: Tensor, *given: Tensor) -> Tensor:
    return (outputs - 1.0).square().mean()


@cache
def domain(model: str, nodes: int, ranks_per_node: int) -> Domain:
    graph = import_module(
        lambda: make_model(model), (inputs(model, 0, 0),), loss, name=model, batch_size=BATCH
    )
    return domain_of(graph, grid_cluster(nodes, ranks_per_node))


def run_drawn(rank: int, world: int, cases: tuple[Drawn, ...]) -> list[Trained]:
    return [run_one(rank, case) for case in cases]


def run_one(rank: int, case: Drawn) -> Trained:
    model = here(make_model(case.model))
    optimizer = make_optimizer(case.optimizer, model)
    names = tuple(name for name, _ in model.named_parameters())
    trace = ExecutionTrace()
    attachment = attach_here(model, optimizer, case.plan, names, trace=trace)
    queues = [record.queue for record in attachment.engine.messages]
    for iteration in range(ITERATIONS):
        optimizer.zero_grad()
        loss(model(beside(model, inputs(case.model, iteration, rank)))).backward()
        optimizer.step()
    attachment.detach()
    found = weights(model)
    wanted = reference(case.model, case.optimizer, case.plan.shares)
    wrong = disorder(trace, issue_order(case.plan), queues, ITERATIONS)
    return Trained(found.tolist(), gap(found, wanted), wrong)


@cache
def reference(name: str, optimizer_name: str, shares: tuple[float, ...]) -> Tensor:
    """Weights after training on the share-weighted average, module buffers being replica 0's."""
    model = here(make_model(name))
    optimizer = make_optimizer(optimizer_name, model)
    for iteration in range(ITERATIONS):
        sums: list[Tensor | None] = [None] * len(list(model.parameters()))
        for rank, share in enumerate(shares):
            replica = copy.deepcopy(model)
            replica.zero_grad()
            loss(replica(beside(replica, inputs(name, iteration, rank)))).backward()
            if rank == 0:
                buffers = [buffer.clone() for buffer in replica.buffers()]
            for place, p in enumerate(replica.parameters()):
                weighted, before = gradient_of(p) * share, sums[place]
                sums[place] = weighted if before is None else before + weighted
        for buffer, value in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(value)
        for p, mean in zip(model.parameters(), sums, strict=True):
            p.grad = mean
        optimizer.step()
    return weights(model)
