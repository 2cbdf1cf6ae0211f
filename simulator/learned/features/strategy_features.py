"""What a strategy looks like to the learned simulator: sums over its messages."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.cancellation import in_order
from autosync.domain import Domain
from autosync.population import Population
from autosync.simulator.learned.features.domain_descriptor import describe_domain
from autosync.simulator.learned.features.node_features import NodeFeatures, node_features
from autosync.simulator.learned.features.summary_features import summary_table
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.simulator.timeline.what_if import timeline_times

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

CHUNK = 256
"""Strategies whose features are held together; bounds memory."""
THREADS = 2
"""That make them; three chunks are held at once."""


@dataclass(frozen=True, slots=True)
class StrategyFeatures:
    """n strategies of one domain.

    base_seconds f64[n]: the timeline's prediction. summary f64[n, F]: SUMMARY_COLUMNS, behind them
    an encoder's hidden state once it has read `nodes`, which are None where nobody asked for them.
    descriptor f64[len(DESCRIPTOR)]: of the domain.
    """

    base_seconds: F64
    summary: F64
    descriptor: F64
    nodes: NodeFeatures | None = None

    def __len__(self) -> int:
        return len(self.base_seconds)

    def take(self, indices: I64) -> "StrategyFeatures":
        """The strategies of these indices, in their order."""
        return StrategyFeatures(
            self.base_seconds[indices],
            self.summary[indices],
            self.descriptor,
            self.nodes and NodeFeatures(self.nodes.values[indices], self.nodes.edges),
        )


def features_of(
    domain: Domain, population: Population, with_nodes: bool = False
) -> StrategyFeatures:
    """All at once: for the few hundred that were measured. with_nodes: what an encoder reads."""
    plans = compile_plans_fast(population, domain)
    times = timeline_times(plans, population, domain)
    plain = not (population.engine.any() or population.extension.any())  # else not told by messages
    known = plain and np.isfinite(times.seconds).all()  # what is not sound is refused by name
    predicted = TimelineSimulator().predict_plans
    base = times.seconds if known else predicted(domain, population, plans)
    summary = summary_table(plans, population, domain, times, base)
    nodes = node_features(plans, population, domain, times) if with_nodes else None
    return StrategyFeatures(base, summary, describe_domain(domain), nodes)


def feature_chunks(
    domain: Domain, population: Population, with_nodes: bool = False
) -> Iterator[StrategyFeatures]:
    """The features of a population, some strategies at a time, made on two threads: kernels need no
    interpreter. Raises Cancelled between chunks."""

    def chunk(start: int) -> StrategyFeatures:
        part = population.between(start, min(start + CHUNK, len(population)))
        return features_of(domain, part, with_nodes)

    return in_order(THREADS, chunk, range(0, len(population), CHUNK))
