"""Invented measurements for tests: the timeline of a world whose constants differ from those that
the simulators are told, with effects that no timeline knows, and noise. Nothing here was measured.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autosync.cluster import Cluster, MessageCost, MessageKind
from autosync.domain import Domain
from autosync.population import Population, encode
from autosync.simulator.learned.features.strategy_features import features_of
from autosync.simulator.learned.learned_simulator import LabelledTrials
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.simulator.worked_examples import random_strategy

F64 = NDArray[np.float64]


def small_domain(gbps: float = 0.956, layers: int = 5, width: int = 96) -> Domain:
    """A chain of linear layers on four nodes; communication takes about as long as compute."""
    shapes = tuple(
        shape for layer in range(layers) for shape in ((width + 8 * layer, width), (width,))
    )
    return domain_of(chain_graph(shapes), grid_cluster(4, gbps=gbps), 1e-3)


def some_strategies(domain: Domain, count: int, seed: int = 0) -> Population:
    rng = np.random.default_rng(seed)
    return encode([random_strategy(domain, rng) for _ in range(count)], domain)


def invented_seconds(
    domain: Domain, population: Population, noise: float = 0.005, seed: int = 1
) -> F64:
    """Startups are not what the cluster file says, and overlap and shards have a price."""
    true = replace(domain, cluster=_true(domain.cluster))
    seconds = TimelineSimulator().predict(true, population)
    shards = np.diff(population.first)
    seconds = seconds * (1.0 + 0.15 * np.tanh(shards / shards.mean() - 1.0))
    seconds = seconds * (1.0 + 0.1 * population.overlap)
    result: F64 = seconds * np.exp(
        noise * np.random.default_rng(seed).standard_normal(len(seconds))
    )
    return result


def _true(cluster: Cluster) -> Cluster:
    factors: dict[MessageKind, float] = {"all_reduce": 0.4, "reduce": 2.0, "broadcast": 1.5}
    factors |= {"all_gather": 0.6, "all_to_all": 2.5, "send_recv": 3.0}
    costs = [
        replace(cost, startup_seconds=cost.startup_seconds * factor)
        for kind, factor in factors.items()
        for cost in [cluster.cost(kind)]
    ]
    return replace(cluster, costs=(*costs, MessageCost("engine", 1e-4)))


def labelled(domain: Domain, count: int = 60, seed: int = 0) -> LabelledTrials:
    population = some_strategies(domain, count, seed)
    seconds = invented_seconds(domain, population)
    return LabelledTrials(domain, features_of(domain, population), seconds)


def other_domains() -> list[LabelledTrials]:
    """Of three domains of the same world."""
    found = []
    for seed, size in enumerate(((1.5, 4, 96), (0.6, 6, 80), (0.956, 5, 128))):
        domain = small_domain(*size)
        graph = replace(domain.graph, name=f"chain {seed}")
        found.append(labelled(replace(domain, graph=graph), 80, seed))
    return found
