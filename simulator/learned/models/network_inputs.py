"""From features to the tensors that a network reads; and how their columns are standardised."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.learned.features.variable_graph import pruned_graph
from autosync.simulator.learned.models.model_arrays import ArrayForm, Arrays, positive
from autosync.simulator.learned.networks.network_training import CORRECTION, RankedTrials
from autosync.simulator.learned.networks.scoring_network import NetworkBatch

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

ROWS = 8192
"""Rows standardised at a time."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """(x - center) / scale, within 5 either way; scale is infinite where a column never varied."""

    center: F64
    scale: F64

    def __call__(self, table: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        standard = np.empty(table.shape, dtype=np.float32)
        for rows in _blocks(len(table)):
            np.clip((table[rows] - self.center) / self.scale, -5.0, 5.0, out=standard[rows])
        return standard

    def arrays(self) -> dict[str, NDArray[Any]]:
        """By the names that checkpoints hold."""
        return {"center": self.center, "scale": self.scale}

    @staticmethod
    def array_forms(columns: int) -> dict[str, ArrayForm]:
        return {"center": ArrayForm((columns,)), "scale": ArrayForm((columns,), rule=positive)}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> "Scaling":
        return cls(arrays["center"], arrays["scale"])


def scaling_of(tables: Sequence[NDArray[np.floating[Any]]]) -> Scaling:
    """Of several domains' tables, `(rows, columns)` each: a domain counts as much as another."""
    center = np.mean([table.mean(axis=0, dtype=np.float64) for table in tables], axis=0)
    scale = np.sqrt(np.mean([_mean_square(table, center) for table in tables], axis=0))
    return Scaling(center, np.where(scale > 1e-6, scale, np.inf))


def _mean_square(table: NDArray[np.floating[Any]], center: F64) -> F64:
    """Of each column's distance to the center."""
    total = np.zeros(len(center))
    for rows in _blocks(len(table)):
        total += ((table[rows] - center) ** 2).sum(axis=0)
    return total / len(table)


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(start, start + ROWS) for start in range(0, rows, ROWS))


def batch_of(
    table: StrategyFeatures,
    domain: Domain,
    shard_scaling: Scaling,
    summary_scaling: Scaling,
    columns: tuple[I64, I64],
) -> NetworkBatch:
    """The batch of strategies of one domain. columns: those read of the shard features and of the
    summary."""
    assert table.shards is not None
    shards, graph = table.shards, pruned_graph(domain.graph)
    return NetworkBatch(
        values=torch.from_numpy(shard_scaling(shards.values[:, columns[0]])),
        summary=torch.from_numpy(summary_scaling(table.summary[:, columns[1]])),
        strategy=torch.from_numpy(np.repeat(np.arange(len(table)), np.diff(shards.first))),
        place=torch.from_numpy(graph.place[shards.variable]),
        node=torch.from_numpy(graph.node[shards.variable]),
        edges=torch.from_numpy(graph.edges),
        variables=len(domain.graph.variables),
    )


def trials_of(
    batch: NetworkBatch, table: StrategyFeatures, step_seconds: F64, on_base: bool
) -> RankedTrials:
    """Measured strategies of a batch.

    on_base: whether the network corrects the timeline's log seconds or stands alone.
    """
    base = np.log(table.base_seconds) if on_base else np.zeros(len(table))
    residual = np.log(step_seconds) - base
    target = (residual - np.median(residual)) / CORRECTION
    return RankedTrials(
        batch=batch,
        base=torch.from_numpy(base.astype(np.float32)),
        target=torch.from_numpy(target.astype(np.float32)),
        labels=torch.from_numpy((step_seconds / np.median(step_seconds)).astype(np.float32)),
        shard_counts=torch.from_numpy(table.shard_counts.astype(np.float32)),
    )
