"""The models behind a learned simulator: what they score, how they fit, how sure they are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from autosync.domain import Domain
from simulator.learned.data import Scaling, batch_of, scaling_of, trials_of
from simulator.learned.features import (
    PARTS,
    Features,
    Part,
    portion_columns,
    shared_columns,
    summary_columns,
)
from simulator.learned.networks import Batch, LstmNetwork, Network
from simulator.learned.residual import Ridge, fit_pooled, fit_ridge
from simulator.learned.training import CORRECTION, Trained, Training, one_thread, select, train

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

FEWEST_FOR_NETWORK = 24
"""Trials below which a network is not trained: three or fewer would be left to choose an epoch."""
FINE_TUNING = 0.3
"""Share of the learning rate where the network comes from other domains."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """How a model scores the trials it was given. held bool[n]: those whose score did not come
    from a fit to themselves."""

    scores: F64
    held: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Labelled:
    """Measured strategies of one domain: their features and seconds."""

    domain: Domain
    features: Features
    step_seconds: F64


class Model(Protocol):
    """Scores are log seconds up to a monotone curve."""

    name: str
    with_portions: bool

    def fit(self, trials: Labelled) -> Fitted:
        """Learn from the trials of one domain, starting from what was learned elsewhere."""
        ...

    def pretrain(self, sources: Sequence[Labelled], importance: F64) -> None:
        """Learn from several domains, `importance` `(domains,)` of each."""
        ...

    def scores(self, domain: Domain, features: Features) -> tuple[F64, F64]:
        """Scores and their standard deviation as far as the model knows it, `(n,)` each."""
        ...


class LinearModel:
    """Ridge on the summary of a strategy; corrects the timeline, or stands alone (`on_base`)."""

    with_portions = False

    def __init__(self, parts: tuple[Part, ...] = PARTS, on_base: bool = True) -> None:
        self.name = "linear"
        self.parts, self.on_base = parts, on_base
        self.prior: Ridge | None = None
        self.ridge: Ridge | None = None

    def fit(self, trials: Labelled) -> Fitted:
        base, table = self._inputs(trials.features)
        target = np.log(trials.step_seconds) - base
        self.ridge, left_out = fit_ridge(table, target, self.prior)
        return Fitted(base + left_out, np.ones(len(base), dtype=np.bool_))

    def pretrain(self, sources: Sequence[Labelled], importance: F64) -> None:
        inputs = [self._inputs(source.features) for source in sources]
        targets = [
            np.log(source.step_seconds) - base
            for source, (base, _) in zip(sources, inputs, strict=True)
        ]
        tables = [table for _, table in inputs]
        self.prior = fit_pooled(tables, targets, importance, shared_columns(self.parts))
        self.ridge = self.prior

    def scores(self, domain: Domain, features: Features) -> tuple[F64, F64]:
        base, table = self._inputs(features)
        if self.ridge is None:
            return base, np.zeros(len(base))
        return base + self.ridge.correction(table), self.ridge.doubt(table)

    def _inputs(self, features: Features) -> tuple[F64, F64]:
        base = np.log(features.base_seconds) if self.on_base else np.zeros(len(features))
        return base, features.summary[:, summary_columns(self.parts)]


NetworkKind = Literal["lstm", "gat"]


class NetworkModel:
    """An LSTM or a GAT; corrects the timeline, or stands alone (`on_base`).

    layers, width: of the LSTM; the published one is 3 x 128. hold: which trials choose the epoch
        (indices by the number of trials); the last ones of a random order by default.
    """

    with_portions = True

    def __init__(
        self,
        kind: NetworkKind = "lstm",
        training: Training | None = None,
        parts: tuple[Part, ...] = PARTS,
        on_base: bool = True,
        layers: int = 1,
        width: int = 64,
    ) -> None:
        self.name: str = kind
        self.kind, self.parts, self.on_base = kind, parts, on_base
        self.layers, self.width = layers, width
        self.training = training or Training()
        self.columns = portion_columns(parts), summary_columns(parts)
        self.network: Network | None = None
        self.scaling: tuple[Scaling, Scaling] | None = None
        self.prior: dict[str, Tensor] | None = None
        self.trained = Trained(0, ())

    def fit(self, trials: Labelled) -> Fitted:
        rng = np.random.default_rng(self.training.seed)
        count = round(self.training.validation * len(trials.features))
        return self.fit_held(trials, rng.permutation(len(trials.features))[:count])

    def fit_held(self, trials: Labelled, kept_out: I64) -> Fitted:
        """Fit while the trials `kept_out` only choose the epoch."""
        n = len(trials.features)
        held = np.zeros(n, dtype=np.bool_)
        held[kept_out] = True
        if n >= FEWEST_FOR_NETWORK and held.any():
            learned = trials.features.take(np.flatnonzero(~held))
            network = self._start([learned])
            everything = trials_of(
                self._batch(trials.domain, trials.features),
                trials.features,
                trials.step_seconds,
                self.on_base,
            )
            rate = self.training.learning_rate * (1.0 if self.prior is None else FINE_TUNING)
            self.trained = train(
                network,
                [select(everything, np.flatnonzero(~held))],
                [select(everything, np.flatnonzero(held))],
                replace(self.training, learning_rate=rate),
            )
        return Fitted(self.scores(trials.domain, trials.features)[0], held)

    def pretrain(self, sources: Sequence[Labelled], importance: F64) -> None:
        """`importance` is not used: each source gets as many steps as its trials ask for."""
        rng = np.random.default_rng(self.training.seed)
        self.prior = None
        network = self._start([source.features for source in sources])
        learn, keep_out = [], []
        for source in sources:
            trials = trials_of(
                self._batch(source.domain, source.features),
                source.features,
                source.step_seconds,
                self.on_base,
            )
            order = rng.permutation(len(trials))
            count = max(2, round(self.training.validation * len(trials)))
            keep_out.append(select(trials, order[:count]))
            learn.append(select(trials, order[count:]))
        self.trained = train(network, learn, keep_out, self.training)
        self.prior = {name: value.clone() for name, value in network.state_dict().items()}

    def scores(self, domain: Domain, features: Features) -> tuple[F64, F64]:
        base = np.log(features.base_seconds) if self.on_base else np.zeros(len(features))
        if self.network is None:
            return base, np.zeros(len(base))
        self.network.eval()
        with torch.no_grad(), one_thread():
            correction = self.network(self._batch(domain, features)).numpy().astype(np.float64)
        return base + CORRECTION * correction, np.zeros(len(base))

    def build(self) -> Network:
        """A new network of this model's shape, its weights drawn from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.training.seed)
            portions, summary = (len(columns) for columns in self.columns)
            if self.kind == "lstm":
                return LstmNetwork(portions, summary, self.layers, self.width)
            from simulator.learned.gat import GatNetwork  # takes seconds to load

            return GatNetwork(portions, summary)

    def _start(self, tables: list[Features]) -> Network:
        """The network to train: as other domains left it, or new, with the tables' scaling."""
        self.network = self.build()
        if self.prior is not None:
            self.network.load_state_dict(self.prior)
            return self.network
        values = [t.portions.values[:, self.columns[0]] for t in tables if t.portions]
        summary = [table.summary[:, self.columns[1]] for table in tables]
        self.scaling = scaling_of(values), scaling_of(summary)
        return self.network

    def _batch(self, domain: Domain, features: Features) -> Batch:
        assert self.scaling is not None
        return batch_of(features, domain, *self.scaling, self.columns, self.kind == "gat")
