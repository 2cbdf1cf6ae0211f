"""What a strategy looks like to the models: sums over its messages, and its shard sets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.cancellation import in_order
from autosync.domain import Domain
from autosync.plan import PlanTable
from autosync.population import Population
from autosync.simulator.learned.features.domain_descriptor import describe_domain
from autosync.simulator.learned.features.shard_features import (
    ShardFeatures,
    features_of_shards,
    joined_shards,
)
from autosync.simulator.learned.features.summary_features import summary_table
from autosync.simulator.learned.features.what_if import timeline_times
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

CHUNK = 256
"""Strategies whose features are held together; bounds memory."""
SHARD_CHUNK = 64
"""The same with those of shards, which are far larger (BERT-large: 8 MB of features, and five times
as much while they are made)."""
THREADS = 2
"""That make them; three chunks are held at once."""


@dataclass(frozen=True, slots=True)
class StrategyFeatures:
    """n strategies of one domain.

    base_seconds f64[n]: the timeline's prediction. summary f64[n, len(SUMMARY_COLUMNS)]: sums
    over the messages. shard_counts f64[n]: the ranking loss penalises more shards.
    shards: a row per shard set, or None where only sums were asked for.
    descriptor f64[len(DESCRIPTOR)]: of the domain.
    """

    base_seconds: F64
    summary: F64
    shard_counts: F64
    shards: ShardFeatures | None
    descriptor: F64

    def __len__(self) -> int:
        return len(self.base_seconds)

    def take(self, indices: I64) -> "StrategyFeatures":
        """The strategies of these indices, in their order."""
        return StrategyFeatures(
            self.base_seconds[indices],
            self.summary[indices],
            self.shard_counts[indices],
            None if self.shards is None else self.shards.take(indices),
            self.descriptor,
        )


def joined_features(parts: Sequence[StrategyFeatures]) -> StrategyFeatures:
    """Of strategies of one graph and cluster; the domain is that of the last ones."""
    shards = [part.shards for part in parts if part.shards is not None]
    return StrategyFeatures(
        np.concatenate([part.base_seconds for part in parts]),
        np.concatenate([part.summary for part in parts]),
        np.concatenate([part.shard_counts for part in parts]),
        joined_shards(shards) if len(shards) == len(parts) else None,
        parts[-1].descriptor,
    )


def features_of_plans(
    plans: PlanTable, population: Population, domain: Domain, with_shards: bool = True
) -> StrategyFeatures:
    """The features of compiled plans.

    with_shards: also of each shard set, for the LSTM and the GAT; the others need sums only.
    """
    times = timeline_times(plans, population, domain)
    plain = not (population.engine.any() or population.extension.any())  # else not told by messages
    known = plain and np.isfinite(times.seconds).all()  # what is not sound is refused by name
    predicted = TimelineSimulator().predict_plans
    base = times.seconds if known else predicted(domain, population, plans)
    return StrategyFeatures(
        base_seconds=base,
        summary=summary_table(plans, population, domain, times, base),
        shard_counts=np.diff(population.first).astype(np.float64),
        shards=features_of_shards(plans, population, domain, times) if with_shards else None,
        descriptor=describe_domain(domain),
    )


def features_of(
    domain: Domain, population: Population, with_shards: bool = True
) -> StrategyFeatures:
    """All at once: for the few hundred that were measured."""
    return features_of_plans(
        compile_plans_fast(population, domain), population, domain, with_shards
    )


def feature_chunks(
    domain: Domain, population: Population, with_shards: bool
) -> Iterator[StrategyFeatures]:
    """The features of a population, some strategies at a time, made on two threads: kernels need no
    interpreter. Raises Cancelled between chunks."""
    size = SHARD_CHUNK if with_shards else CHUNK

    def chunk(start: int) -> StrategyFeatures:
        part = population.between(start, min(start + size, len(population)))
        return features_of_plans(compile_plans_fast(part, domain), part, domain, with_shards)

    return in_order(THREADS, chunk, range(0, len(population), size))
