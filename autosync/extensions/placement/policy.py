"""HeteroG's policy (Yi et al. 2020, section 4.1), trained by REINFORCE on predicted seconds: each
heavy module lives on one device, or is data parallel.

Operations are grouped around the heaviest modules. Graph attention encodes the operations, each
group is the sum of its operations, attention runs among groups, and each group's actions get
scores. Devices are scored by what they are, not by their number. It is smaller than the paper's (12
layers of 8 heads, 8 layers of Transformer-XL), so that it trains on two processor cores; and draws
keep most groups as in the best placement found so far, so that hundreds of predictions do.

Imported only where it is used: torch-geometric takes seconds to load.
"""

import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Categorical

from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.extensions.placement.document import PlacedModule, evenly
from autosync.extensions.placement.module_borders import borders_of
from autosync.extensions.placement.placeable_modules import PlaceableModule, modules_to_place
from autosync.extensions.placement.proposals import (
    EvaluatedPlacement,
    PlacementEvaluator,
    with_placement,
)
from autosync.search.designs.wire_estimates import wire_seconds
from autosync.search.domain_facts import rank_speeds, sent_bytes, server_weights
from autosync.strategy import AllReduce, Strategy
from autosync.verification import verify

with warnings.catch_warnings():
    # torch-geometric 2.8 calls torch.jit.script, which torch 2.13 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.nn import GATConv

OPERATION_FEATURES, DEVICE_FEATURES = 6, 3

INFEASIBLE_REWARD = -20.0
"""Of actions that no strategy can have, such as every variable on some ranks only."""

MAX_ADVANTAGE = 3.0
"""In standard deviations: a sample that runs out of memory does not outweigh all others."""


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """groups: at most. samples: of each round. changes: groups that a sample changes by the prior
    alone. learning_rate: 0 draws from the prior, without learning. entropy: its weight in the
    objective. decay: of the moving baseline. layers: of graph attention. width: of embeddings,
    divisible by heads.
    """

    groups: int = 64
    samples: int = 8
    changes: float = 2.0
    learning_rate: float = 2e-3
    entropy: float = 0.02
    decay: float = 0.8
    layers: int = 2
    width: int = 64
    heads: int = 4
    seed: int = 0


@dataclass(frozen=True, slots=True)
class GroupedGraph:
    """n operations in G groups, each around a module, on R devices.

    operations: `(n, OPERATION_FEATURES)` float32. edges: `(2, E)` int64, both directions, and each
    operation to itself. group: `(n,)` int64. devices: `(R, DEVICE_FEATURES)` float32. modules: the
    G modules, in the graph's order. blocks: all modules that may be placed, outer ones before those
    inside.
    """

    operations: Tensor
    edges: Tensor
    group: Tensor
    devices: Tensor
    modules: tuple[str, ...]
    blocks: tuple[str, ...]

    @property
    def data_parallel(self) -> int:
        """The action behind those of the devices."""
        return len(self.devices)


class PlacementPolicy(nn.Module):
    """All scores of a new one are zero."""

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__()
        width, heads = settings.width, settings.heads
        self.encoder = nn.Linear(OPERATION_FEATURES, width)
        self.attention = nn.ModuleList(
            GATConv(width, width // heads, heads, add_self_loops=False)
            for _ in range(settings.layers)
        )
        self.among = nn.TransformerEncoderLayer(width, heads, 2 * width, 0.0, batch_first=True)
        self.device = nn.Linear(DEVICE_FEATURES, width)
        self.on_device = nn.Linear(width, 1)
        self.data_parallel = nn.Linear(width, 1)
        for last in (self.on_device, self.data_parallel):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def forward(self, graph: GroupedGraph) -> Tensor:
        """Scores of each group's actions, `(G, R + 1)`."""
        states = torch.relu(self.encoder(graph.operations))
        for layer in self.attention:
            states = states + nn.functional.elu(layer(states, graph.edges))
        sums = states.new_zeros(len(graph.modules), states.shape[1])
        groups = self.among(sums.index_add(0, graph.group, states)[None])[0]
        met = torch.relu(groups[:, None] + self.device(graph.devices)[None])
        return torch.cat([self.on_device(met)[..., 0], self.data_parallel(groups)], 1)


def learned_placement(
    evaluator: PlacementEvaluator,
    base: Strategy,
    budget: int = 400,
    settings: PolicySettings | None = None,
) -> EvaluatedPlacement:
    """The best that a new policy finds in `budget` evaluations, and before the evaluator's `stop`;
    `base` itself where nothing is better.

    base: a strategy without a placement, whose replicas and messages all else keeps.
    """
    settings = settings or PolicySettings()
    graph = grouped_graph(evaluator.domain, settings.groups)
    first = best = evaluator.evaluate([base])[0]
    actions = (graph.data_parallel,) * len(graph.modules)
    tried = {actions}
    baseline = -1.0  # the base's reward, where it fits
    with torch.random.fork_rng(devices=[]):  # a training job's own states stay what they are
        torch.manual_seed(settings.seed)
        policy = PlacementPolicy(settings)
        optimizer = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate)
        while graph.modules and len(tried) < budget and not evaluator.stop():
            chances = Categorical(logits=_prior(actions, graph, settings) + policy(graph))
            drawn = map(tuple, chances.sample((4 * settings.samples,)).tolist())
            most = min(settings.samples, budget - len(tried))
            samples = [each for each in dict.fromkeys(drawn) if each not in tried][:most]
            if not samples:
                break
            tried.update(samples)
            rewards = []
            for sample, found in zip(samples, _found(evaluator, base, graph, samples), strict=True):
                rewards.append(found.reward(first.step_seconds) if found else INFEASIBLE_REWARD)
                if found is not None and found.improves(best):
                    best, actions = found, sample
            likelihoods = chances.log_prob(torch.tensor(samples)).sum(1)
            advantages = _advantages(torch.tensor(rewards), baseline)
            objective = (likelihoods * advantages).mean() / len(graph.modules) ** 0.5
            objective = objective + settings.entropy * chances.entropy().mean()
            baseline += (1 - settings.decay) * (sum(rewards) / len(rewards) - baseline)
            optimizer.zero_grad()
            (-objective).backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
    return best


def _advantages(rewards: Tensor, baseline: float) -> Tensor:
    """Rewards above the baseline, in their standard deviation."""
    above = (rewards - baseline) / (rewards.std(correction=0) + 1e-6)
    return above.clamp(-MAX_ADVANTAGE, MAX_ADVANTAGE)


def _prior(actions: Sequence[int], graph: GroupedGraph, settings: PolicySettings) -> Tensor:
    """`(G, R + 1)` logits by which about `changes` groups of a sample differ from `actions`."""
    others = graph.data_parallel
    stays = others * max(1.0, len(actions) / settings.changes - 1)
    prior = torch.zeros(len(actions), others + 1)
    prior[range(len(actions)), list(actions)] = log(stays)
    return prior


def _found(
    evaluator: PlacementEvaluator,
    base: Strategy,
    graph: GroupedGraph,
    samples: Sequence[Sequence[int]],
) -> list[EvaluatedPlacement | None]:
    """None where no strategy can be so."""
    strategies: list[Strategy | None] = []
    for actions in samples:
        strategy = strategy_of_actions(evaluator.domain, base, graph, actions)
        try:
            verify(strategy, evaluator.domain, allow_lossy=True)
            strategies.append(strategy)
        except InvalidStrategy:
            strategies.append(None)
    possible = [each for each in strategies if each is not None]
    evaluated = iter(evaluator.evaluate(possible) if possible else [])
    return [None if each is None else next(evaluated) for each in strategies]


def strategy_of_actions(
    domain: Domain, base: Strategy, graph: GroupedGraph, actions: Sequence[int]
) -> Strategy:
    """actions: of each group.

    Modules on one device make up the largest block whose groups are all there, so that samples are
    dealt at its borders only.
    """
    rank_of = dict(zip(graph.modules, actions, strict=True))
    placed: list[PlacedModule] = []
    for block in graph.blocks:
        inside = [name for name in rank_of if name == block or name.startswith(f"{block}.")]
        ranks = {rank_of[name] for name in inside}
        # a block around the module of a single group also holds what no group stands for
        represented = len(inside) > 1 or inside == [block]
        on_one_device = len(ranks) == 1 and graph.data_parallel not in ranks
        if represented and on_one_device and not any(outer.holds(block) for outer in placed):
            placed.append(evenly(block, ranks))
    return with_placement(base, domain, tuple(placed))


def grouped_graph(domain: Domain, most: int) -> GroupedGraph:
    """Groups around the heaviest innermost modules, at most so many (HeteroG, section 4.1.1); each
    operation outside of them is in the group that is the fewest hops away.

    Heavy is what takes long to compute, or whose gradients take long on the wire.
    """
    placeable = modules_to_place(domain)
    wire = _wire_seconds_of_variables(domain)

    def weight(module: PlaceableModule) -> float:
        held = borders_of(domain.graph, module.name).variables
        return module.seconds + float(wire[list(held)].sum())

    leaves = [each for each in placeable if each.is_leaf]
    heaviest = sorted(leaves, key=weight, reverse=True)[:most]
    heaviest.sort(key=lambda each: each.operations[0])
    edges = _edges(domain)
    return GroupedGraph(
        torch.from_numpy(_operation_features(domain, wire)),
        torch.from_numpy(edges),
        torch.from_numpy(_nearest([each.operations for each in heaviest], edges)),
        torch.from_numpy(_device_features(domain)),
        tuple(each.name for each in heaviest),
        tuple(each.name for each in placeable),
    )


def _wire_seconds_of_variables(domain: Domain) -> NDArray[np.float64]:
    """`(variables,)`: that a ring all-reduce of each takes, without startups."""
    ring = AllReduce(0)
    startup = wire_seconds(domain, ring, np.zeros(1))
    seconds: NDArray[np.float64] = wire_seconds(domain, ring, sent_bytes(domain)) - startup
    return seconds


def _edges(domain: Domain) -> NDArray[np.int64]:
    pairs = [(s, i) for i, each in enumerate(domain.graph.operations) for s in each.inputs]
    both = [*pairs, *((b, a) for a, b in pairs)]
    both += [(index, index) for index in range(len(domain.graph.operations))]
    return np.array(sorted(set(both)), dtype=np.int64).T


def _nearest(inside: Sequence[Sequence[int]], edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of each operation, which of the groups around these operations is nearest; what no path
    leads to goes with the first."""
    count = int(edges.max()) + 1
    neighbours: list[list[int]] = [[] for _ in range(count)]
    for first, second in edges.T.tolist():
        neighbours[first].append(second)
    found = np.full(count, -1, dtype=np.int64)
    for number, operations in enumerate(inside):
        found[list(operations)] = number
    waiting = deque(np.flatnonzero(found >= 0).tolist())
    while waiting:
        operation = waiting.popleft()
        for other in neighbours[operation]:
            if found[other] < 0:
                found[other] = found[operation]
                waiting.append(other)
    return np.maximum(found, 0)


def _operation_features(domain: Domain, wire: NDArray[np.float64]) -> NDArray[np.float32]:
    """Of each operation: forward, backward and its variables' wire seconds over the step's compute
    seconds, output bytes over the largest, whether samples are its first dimension, and whether a
    gradient of it is sparse."""
    graph, profile = domain.graph, domain.profile
    whole = max(profile.compute_seconds, 1e-12)
    largest = max(1, *(each.output_bytes for each in graph.operations))
    rows = [
        (
            _logarithm(forward / whole),
            _logarithm(backward / whole),
            _logarithm(float(wire[list(each.variables)].sum()) / whole),
            each.output_bytes / largest,
            each.has_batch_dimension,
            any(graph.variables[i].sparse for i in each.variables),
        )
        for each, forward, backward in zip(
            graph.operations, profile.forward_seconds, profile.backward_seconds, strict=True
        )
    ]
    return np.array(rows, dtype=np.float32)


def _logarithm(share: float) -> float:
    """From 0 for nothing to about 1 for the whole."""
    return float(np.log1p(1e3 * share)) / 7


def _device_features(domain: Domain) -> NDArray[np.float32]:
    """Of each device: its speed and its bandwidth over the mean, and its memory over the bytes of
    all variables."""
    speeds = np.array(rank_speeds(domain))
    weights = server_weights(domain)[: domain.world_size]
    devices = domain.cluster.device_of_rank()
    memory = np.array([each.memory_bytes for each in devices]) / domain.graph.size_bytes
    rows = (np.log(speeds / speeds.mean()), np.log(weights / weights.mean()), np.log1p(memory) / 4)
    return np.stack(rows, 1).astype(np.float32)
