"""The models that read a strategy variable by variable: what networks read, and what they score."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.graph import ModelGraph
from autosync.simulator.learned.features.feature_names import (
    SHARD_COLUMNS,
    SUMMARY_COLUMNS,
)
from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.learned.models.learned_model import FittedScores, LabelledTrials
from autosync.simulator.learned.models.model_arrays import (
    ArrayFields,
    ArrayForm,
    Arrays,
    below,
    nested,
    positive,
)
from autosync.simulator.learned.models.recipe import NetworkKind, Recipe
from autosync.simulator.learned.models.source_trials import MOST_OF_A_SOURCE
from autosync.simulator.learned.networks.network_training import (
    CORRECTION,
    RankedTrials,
    TrainingSettings,
    network_output,
    select,
    train,
)
from autosync.simulator.learned.networks.scoring_network import (
    LstmNetwork,
    NetworkBatch,
    ScoringNetwork,
)

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

WARM_EPOCHS = 10
"""Of a network that goes on with more domains."""
FINE_TUNING = 0.3
"""Share of the learning rate of such a network."""


class NetworkModel:
    """An LSTM or a GAT, which corrects the timeline."""

    with_shards = True

    def __init__(
        self, kind: NetworkKind = "lstm", training: TrainingSettings | None = None
    ) -> None:
        self.kind = kind
        self.training = training or TrainingSettings()
        self.network: ScoringNetwork | None = None
        self.scaling: tuple[Scaling, Scaling] | None = None

    @property
    def recipe(self) -> Recipe:
        return Recipe(self.kind)

    @property
    def seed(self) -> int:
        return self.training.seed

    def fit(self, trials: LabelledTrials) -> FittedScores:
        """Scores the trials: a network learns from other domains alone. Of one domain's few trials
        it learned nothing that the Gaussian process did not (docs/learned.md)."""
        scores = self.scores(trials.domain, trials.features)
        return FittedScores(scores, np.ones(len(scores), dtype=np.bool_))

    def pretrain(self, sources: Sequence[LabelledTrials], importance: F64) -> None:
        """With three sources or more, the one most like the target chooses the epoch; else a part
        of each source's trials. Each source gets as many steps as its trials ask for. What has
        learned before goes on from there, at a lower rate and for WARM_EPOCHS at most."""
        rng = np.random.default_rng(self.training.seed)
        training = self.training
        if self.network is None:
            self.network = self.build()
            tables = [source.features for source in sources]
            values = [table.shards.values for table in tables if table.shards]
            self.scaling = scaling_of(values), scaling_of([table.summary for table in tables])
        else:
            rate, epochs = FINE_TUNING * training.learning_rate, min(training.epochs, WARM_EPOCHS)
            training = replace(training, learning_rate=rate, epochs=epochs)
        learn, held_out = [], []
        for number, source in enumerate(sources):
            batch = self._batch(source.domain, source.features)
            trials = trials_of(batch, source.features, source.step_seconds)
            order = rng.permutation(len(trials))[:MOST_OF_A_SOURCE]
            count = max(2, round(self.training.validation * len(order)))
            if len(sources) > 2:
                count = len(order) if number == int(np.argmax(importance)) else 0
            if count:
                held_out.append(select(trials, order[:count]))
            if count < len(order):
                learn.append(select(trials, order[count:]))
        train(self.network, learn, held_out, training)

    def scores(self, domain: Domain, features: StrategyFeatures) -> F64:
        base: F64 = np.log(features.base_seconds)
        if self.network is None:
            return base
        corrections = network_output(self.network, self._batch(domain, features)).numpy()
        return base + CORRECTION * corrections.astype(np.float64)

    def scores_with_std(self, domain: Domain, features: StrategyFeatures) -> tuple[F64, F64]:
        scores = self.scores(domain, features)
        return scores, np.zeros(len(scores))

    def build(self) -> ScoringNetwork:
        """A new network of this model's shape, its weights drawn from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.training.seed)
            shards, summary = len(SHARD_COLUMNS), len(SUMMARY_COLUMNS)
            if self.kind == "lstm":
                return LstmNetwork(shards, summary)
            from autosync.simulator.learned.networks.gat_network import (
                GatNetwork,  # takes seconds to load
            )

            return GatNetwork(shards, summary)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """`portions` is the name that files give the shard features."""
        if self.network is None:
            return {}
        assert self.scaling is not None
        shards, summary = self.scaling
        network = {name: tensor.numpy() for name, tensor in self.network.state_dict().items()}
        return {
            **nested("portions.", shards.arrays()),
            **nested("summary.", summary.arrays()),
            **nested("network.", network),
        }

    def array_forms(self, given: Arrays) -> dict[str, ArrayForm]:
        if not below("network.", given):
            return {}
        shards, summary = map(Scaling.array_forms, (len(SHARD_COLUMNS), len(SUMMARY_COLUMNS)))
        network = {
            name: ArrayForm(tuple(tensor.shape), np.float32)
            for name, tensor in self.build().state_dict().items()
        }
        return {
            **nested("portions.", shards),
            **nested("summary.", summary),
            **nested("network.", network),
        }

    def load(self, arrays: Arrays) -> None:
        if not (network := below("network.", arrays)):
            return
        shards, summary = below("portions.", arrays), below("summary.", arrays)
        self.scaling = Scaling.from_arrays(shards), Scaling.from_arrays(summary)
        self.network = self.build()
        self.network.load_state_dict({n: torch.from_numpy(each) for n, each in network.items()})
        self.network.eval()

    def _batch(self, domain: Domain, features: StrategyFeatures) -> NetworkBatch:
        assert self.scaling is not None
        return batch_of(features, domain, *self.scaling)


ROWS = 8192
"""Rows standardised at a time."""


@dataclass(frozen=True, slots=True)
class Scaling(ArrayFields):
    """(x - center) / scale, within 5 either way; scale is infinite where a column never varied."""

    center: F64
    scale: F64

    def __call__(self, table: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        standard = np.empty(table.shape, dtype=np.float32)
        for rows in _blocks(len(table)):
            np.clip((table[rows] - self.center) / self.scale, -5.0, 5.0, out=standard[rows])
        return standard

    @staticmethod
    def array_forms(columns: int) -> dict[str, ArrayForm]:
        return {"center": ArrayForm((columns,)), "scale": ArrayForm((columns,), rule=positive)}


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
) -> NetworkBatch:
    """The batch of strategies of one domain."""
    assert table.shards is not None
    shards, graph = table.shards, pruned_graph(domain.graph)
    return NetworkBatch(
        values=torch.from_numpy(shard_scaling(shards.values)),
        summary=torch.from_numpy(summary_scaling(table.summary)),
        strategy=torch.from_numpy(np.repeat(np.arange(len(table)), np.diff(shards.first))),
        place=torch.from_numpy(graph.place[shards.variable]),
        node=torch.from_numpy(graph.node[shards.variable]),
        edges=torch.from_numpy(graph.edges),
        variables=len(domain.graph.variables),
    )


def trials_of(batch: NetworkBatch, table: StrategyFeatures, step_seconds: F64) -> RankedTrials:
    """Measured strategies of a batch."""
    base = np.log(table.base_seconds)
    residual = np.log(step_seconds) - base
    target = (residual - np.median(residual)) / CORRECTION
    return RankedTrials(
        batch=batch,
        base=torch.from_numpy(base.astype(np.float32)),
        target=torch.from_numpy(target.astype(np.float32)),
        labels=torch.from_numpy((step_seconds / np.median(step_seconds)).astype(np.float32)),
        shard_counts=torch.from_numpy(table.shard_counts.astype(np.float32)),
    )


class PrunedGraph(NamedTuple):
    """place, node i64[V]: of each variable in forward order and in the pruned graph (as
    `forward_places` and `operation_nodes` say). edges i64[2, E]: `node_edges`."""

    place: I64
    node: I64
    edges: I64


@lru_cache(maxsize=8)
def pruned_graph(graph: ModelGraph) -> PrunedGraph:
    """What the networks read of a graph, the same for every strategy."""
    return PrunedGraph(forward_places(graph), operation_nodes(graph), node_edges(graph))


def variable_edges(graph: ModelGraph) -> I64:
    """A `(2, E)` array of ordered pairs, both directions, each once (thesis 8.3.1, G^p).

    Variables of one operation are joined; so are those of two operations when the output of one
    reaches the other through operations without variables.
    """
    sources: list[frozenset[int]] = []
    pairs: set[tuple[int, int]] = set()
    for operation in graph.operations:
        above = frozenset().union(*(sources[i] for i in operation.inputs))
        own = operation.variables
        pairs.update((u, v) for v in own for u in (*above, *own) if u != v)
        sources.append(frozenset(own) or above)
    both = sorted(pairs | {(v, u) for u, v in pairs})
    return np.array(both, dtype=np.int64).reshape(len(both), 2).T


def forward_places(graph: ModelGraph) -> I64:
    """i64[V]: each variable's place in the order of first use in the forward pass."""
    first = [uses[0] if uses else len(graph.operations) for uses in graph.consumers()]
    places = np.empty(len(first), dtype=np.int64)
    places[np.argsort(first, kind="stable")] = np.arange(len(first))
    return places


def operation_nodes(graph: ModelGraph) -> I64:
    """i64[V]: each variable's node in the pruned graph, in forward order. Variables first used by
    one operation (a weight and its bias) are one node: they are ready and needed together."""
    consumers = graph.consumers()
    first = [uses[0] if uses else len(graph.operations) for uses in consumers]
    return np.unique(first, return_inverse=True)[1].astype(np.int64)


def node_edges(graph: ModelGraph) -> I64:
    """A `(2, E)` array of ordered pairs of nodes that `variable_edges` join, each once."""
    pairs = operation_nodes(graph)[variable_edges(graph)]
    return np.unique(pairs[:, pairs[0] != pairs[1]], axis=1)
