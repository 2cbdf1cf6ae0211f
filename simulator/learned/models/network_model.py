"""The models that read a strategy variable by variable: how networks are fitted and judged."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from autosync.domain import Domain
from autosync.simulator.learned.features.feature_names import (
    FEATURE_PARTS,
    FeaturePart,
    shard_columns,
    summary_columns,
)
from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.learned.models.learned_model import FittedScores, LabelledTrials
from autosync.simulator.learned.models.model_arrays import ArrayForm, Arrays, below, nested, unfit
from autosync.simulator.learned.models.network_inputs import (
    Scaling,
    batch_of,
    scaling_of,
    trials_of,
)
from autosync.simulator.learned.models.recipe import NetworkKind, Recipe
from autosync.simulator.learned.models.robust_loss import RobustLoss, is_significant
from autosync.simulator.learned.models.source_trials import MOST_OF_A_SOURCE
from autosync.simulator.learned.models.trial_folds import FOLDS, fold_of
from autosync.simulator.learned.networks.lstm_network import LstmNetwork
from autosync.simulator.learned.networks.network_training import (
    CORRECTION,
    RankedTrials,
    TrainingResult,
    TrainingSettings,
    network_output,
    select,
    train,
)
from autosync.simulator.learned.networks.scoring_network import NetworkBatch, ScoringNetwork

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

FEWEST_FOR_NETWORK = 24
"""Trials below which a network is not trained: too few to tell whether it learned anything."""
SHARES = (0.25, 0.5, 0.75, 1.0)
"""Of a new network's correction to choose from; beside them there is none."""
WARM_EPOCHS = 10
"""Of a network that goes on with more domains."""
FINE_TUNING = 0.3
"""Share of the learning rate where the network comes from other domains."""


class NetworkModel:
    """An LSTM or a GAT; corrects the timeline, or stands alone (`on_base`).

    layers, width: of the LSTM; the size published is 3 x 128.
    """

    with_shards = True

    def __init__(
        self,
        kind: NetworkKind = "lstm",
        training: TrainingSettings | None = None,
        parts: tuple[FeaturePart, ...] = FEATURE_PARTS,
        on_base: bool = True,
        layers: int = 1,
        width: int = 64,
    ) -> None:
        self.kind, self.parts, self.on_base = kind, parts, on_base
        self.layers, self.width = layers, width
        self.training = training or TrainingSettings()
        self.columns = shard_columns(parts), summary_columns(parts)
        self.network: ScoringNetwork | None = None
        self.scaling: tuple[Scaling, Scaling] | None = None
        self.prior: dict[str, Tensor] | None = None
        self.trained = TrainingResult(0, ())

    @property
    def recipe(self) -> Recipe:
        return Recipe(self.kind, self.parts, self.on_base, self.layers, self.width)

    @property
    def seed(self) -> int:
        return self.training.seed

    def fit(self, trials: LabelledTrials) -> FittedScores:
        """Every fold of the trials is left out once and scored by a network fitted to the others.
        By these scores the epochs and the share of the correction are chosen (none where the gain
        is not significant), with which one network then learns from all trials."""
        n = len(trials.features)
        base = self._base(trials.features)
        if n < FEWEST_FOR_NETWORK:
            self._reset()
            return FittedScores(self.scores(trials.domain, trials.features), np.zeros(n, np.bool_))
        folds = fold_of(n, FOLDS, self.training.seed)
        left_out, found = np.empty(n), []
        for fold in range(FOLDS):
            rows = np.flatnonzero(folds == fold)
            left_out[rows] = self.fit_without(trials, rows)[rows] - base[rows]
            found.append(self.trained)
        epochs = round(float(np.median([each.epoch for each in found])))
        before, share = self._share(trials, left_out)
        self._reset()
        scores = self.scores(trials.domain, trials.features)
        if share > 0 and epochs > 0:
            scores = base + before + share * (left_out - before)
            network = self._start([trials.features])
            everything = self._trials(trials)
            train(network, [everything], [], replace(self._training(), epochs=epochs))
            self._anchor(network, everything, share)
        self.trained = TrainingResult(epochs if share > 0 else 0, found[0].losses)
        return FittedScores(scores, np.ones(n, dtype=np.bool_))

    def fit_without(self, trials: LabelledTrials, held_out: I64) -> F64:
        """Fit while the trials `held_out` only choose the epoch; the scores of all trials."""
        learned = np.setdiff1d(np.arange(len(trials.features)), held_out)
        network = self._start([trials.features])
        everything = self._trials(trials)
        known = select(everything, learned)
        held = select(everything, held_out)
        self.trained = train(network, [known], [held], self._training())
        self._anchor(network, known)
        return self.scores(trials.domain, trials.features)

    def pretrain(self, sources: Sequence[LabelledTrials], importance: F64) -> None:
        """With three sources or more, the one most like the target chooses the epoch; else a part
        of each source's trials. Each source gets as many steps as its trials ask for. What has
        learned before goes on from there, at a lower rate and for WARM_EPOCHS at most."""
        rng = np.random.default_rng(self.training.seed)
        training = self._training()
        if self.prior is not None:
            training = replace(training, epochs=min(training.epochs, WARM_EPOCHS))
        network = self._start([source.features for source in sources])
        learn, held_out = [], []
        for number, source in enumerate(sources):
            trials = self._trials(source)
            order = rng.permutation(len(trials))[:MOST_OF_A_SOURCE]
            count = max(2, round(self.training.validation * len(order)))
            if len(sources) > 2:
                count = len(order) if number == int(np.argmax(importance)) else 0
            if count:
                held_out.append(select(trials, order[:count]))
            if count < len(order):
                learn.append(select(trials, order[count:]))
        self.trained = train(network, learn, held_out, training)
        self.prior = {name: value.clone() for name, value in network.state_dict().items()}

    def scores(self, domain: Domain, features: StrategyFeatures) -> F64:
        base = self._base(features)
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
            shards, summary = (len(columns) for columns in self.columns)
            if self.kind == "lstm":
                return LstmNetwork(shards, summary, self.layers, self.width)
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
        # before anything of the stated size is built: hidden weights of both directions alone
        given_bytes = sum(array.nbytes for array in given.values())
        if self.kind == "lstm" and 32 * self.layers * self.width**2 > given_bytes:
            raise unfit(f"{self.layers} layers of {self.width} do not fit into {given_bytes} bytes")
        shards, summary = (Scaling.array_forms(len(columns)) for columns in self.columns)
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
        """Later trials fine-tune it."""
        if not (network := below("network.", arrays)):
            return
        shards, summary = below("portions.", arrays), below("summary.", arrays)
        self.scaling = Scaling.from_arrays(shards), Scaling.from_arrays(summary)
        self.prior = {name: torch.from_numpy(array) for name, array in network.items()}
        self.network = self.build()
        self.network.load_state_dict(self.prior)
        self.network.eval()

    def _start(self, tables: list[StrategyFeatures]) -> ScoringNetwork:
        """The network to train: as other domains left it, or new, with the tables' scaling."""
        self.network = self.build()
        if self.prior is not None:
            self.network.load_state_dict(self.prior)
            return self.network
        values = [t.shards.values[:, self.columns[0]] for t in tables if t.shards]
        summary = [table.summary[:, self.columns[1]] for table in tables]
        self.scaling = scaling_of(values), scaling_of(summary)
        return self.network

    def _reset(self) -> None:
        """Back to what other domains taught, or to nothing."""
        self.network = None
        if self.prior is not None:
            self._start([])

    def _share(self, trials: LabelledTrials, left_out: F64) -> tuple[F64, float]:
        """The correction before these trials, `(n,)` log seconds at the level of `left_out`, and
        the share of the step from there to it that is taken."""
        self._reset()
        base = self._base(trials.features)
        target = np.log(trials.step_seconds) - base
        target = target - np.median(target)
        before = self.scores(trials.domain, trials.features) - base
        before = before - np.median(before - target)
        loss = RobustLoss(target, np.exp(base))
        shares = SHARES if self.prior is None else (1.0,)
        misses = [target - before - share * (left_out - before) for share in shares]
        best = int(np.argmin([loss(miss).mean() for miss in misses]))
        gain = loss(target - before) - loss(misses[best])
        return before, shares[best] if is_significant(gain, self.training.confidence) else 0.0

    def _anchor(self, network: ScoringNetwork, known: RankedTrials, share: float = 1.0) -> None:
        """Shift the network's output to the level of these trials; scale the rest by the share."""
        shift = torch.median(network_output(network, known.batch) - known.target)
        network.adjust(float(shift), share)

    def _training(self) -> TrainingSettings:
        rate = self.training.learning_rate * (1.0 if self.prior is None else FINE_TUNING)
        return replace(self.training, learning_rate=rate)

    def _trials(self, trials: LabelledTrials) -> RankedTrials:
        batch = self._batch(trials.domain, trials.features)
        return trials_of(batch, trials.features, trials.step_seconds, self.on_base)

    def _base(self, features: StrategyFeatures) -> F64:
        """Log seconds of what is corrected."""
        return np.log(features.base_seconds) if self.on_base else np.zeros(len(features))

    def _batch(self, domain: Domain, features: StrategyFeatures) -> NetworkBatch:
        assert self.scaling is not None
        return batch_of(features, domain, *self.scaling, self.columns)
