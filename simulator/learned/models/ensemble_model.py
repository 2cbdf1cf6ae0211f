"""Several models at once: the sum of their corrections, weighed by errors on trials left out."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.learned.models.gaussian_model import GaussianModel
from autosync.simulator.learned.models.learned_model import (
    FittedScores,
    LabelledTrials,
    LearnedModel,
)
from autosync.simulator.learned.models.linear_model import LinearModel
from autosync.simulator.learned.models.model_arrays import (
    ArrayForm,
    Arrays,
    below,
    nested,
    shares_of_one,
    unfit,
)
from autosync.simulator.learned.models.recipe import (
    CLOSED_FORMS,
    MEMBER_KINDS,
    MemberKind,
    NetworkKind,
    Recipe,
)
from autosync.simulator.learned.models.ridge import FEWEST_FOR_RIDGE
from autosync.simulator.learned.models.robust_loss import CONFIDENCE, RobustLoss, is_significant
from autosync.simulator.learned.models.stacking import stacked_weights
from autosync.simulator.learned.models.trees_model import TreesModel
from autosync.simulator.learned.models.trial_folds import FOLDS, fold_of

if TYPE_CHECKING:  # torch loads for seconds; only networks need it
    from autosync.simulator.learned.models.network_model import NetworkModel
    from autosync.simulator.learned.networks.network_training import TrainingSettings

F64 = NDArray[np.float64]

PRIOR_SHARES: dict[MemberKind, float] = {
    "linear": 0.0,
    "gaussian": 2.0,
    "trees": 2.0,
    "lstm": 1.0,
    "gat": 1.0,
}
"""What the corrections of members that learned from other domains count for at first, up to a
factor. The ridge ranks unseen models worst of all members, so it counts once trials speak for it;
networks, which rank them a point worse than process and trees, count half (docs/learned.md)."""


class EnsembleModel:
    """score = log seconds of the timeline + the sum of each member's correction times its weight.

    A member is a model of a kind. What has not learned from other domains has FOLDS networks of a
    kind, each of which leaves out another third of the trials; else there is one, which stays as
    other domains left it: fine-tuning it takes longer than a trial. weights f64[members]: as
    `stacked_weights` finds them on trials that no member was fitted to. start: the weights before
    any trial: 0, or PRIOR_SHARES after `pretrain`. The standard deviation is that of the members'
    corrections (the timeline's 0 is one of them) and that of the closed forms, which err together.
    """

    def __init__(
        self,
        training: "TrainingSettings | None" = None,
        members: tuple[MemberKind, ...] = MEMBER_KINDS,
        seed: int = 0,
    ) -> None:
        self.training = training
        self.seed = seed if training is None else training.seed
        self.kinds = members
        self.with_shards = any(kind not in CLOSED_FORMS for kind in members)
        self.closed: dict[MemberKind, LearnedModel] = {
            kind: self._closed_form(kind) for kind in members if kind in CLOSED_FORMS
        }
        self.networks: dict[MemberKind, tuple[NetworkModel, ...]] = {}
        self.start = self.weights = np.zeros(len(members))

    @property
    def recipe(self) -> Recipe:
        return Recipe("ensemble", members=self.kinds)

    @property
    def members(self) -> tuple[tuple[LearnedModel, ...], ...]:
        """The models of each kind, in the order of the weights."""
        return tuple(
            (self.closed[kind],) if kind in self.closed else self.networks.get(kind, ())
            for kind in self.kinds
        )

    def fit(self, trials: LabelledTrials) -> FittedScores:
        base = np.log(trials.features.base_seconds)
        if not self.start.any():
            self._make_networks(FOLDS)
        scores = []
        for kind in self.kinds:
            if kind in self.closed:
                scores.append(self.closed[kind].fit(trials).scores)
            else:
                scores.append(self._fit_left_out(kind, trials))
        left_out = np.array(scores) - base
        self.weights = self._weigh(left_out, trials)
        return FittedScores(base + self.weights @ left_out, np.ones(len(base), dtype=np.bool_))

    def pretrain(self, sources: Sequence[LabelledTrials], importance: F64) -> None:
        if not self.start.any():
            self._make_networks(1)
        for models in self.members:
            for model in models:
                model.pretrain(sources, importance)
        shares = np.array([PRIOR_SHARES[kind] for kind in self.kinds])
        shares = shares if shares.any() else np.ones(len(shares))
        self.start = self.weights = shares / shares.sum()

    def scores(self, domain: Domain, features: StrategyFeatures) -> F64:
        base: F64 = np.log(features.base_seconds)
        shares, corrections = [1.0 - self.weights.sum()], [np.zeros(len(base))]
        for share, model in self._counted():
            shares.append(share)
            corrections.append(model.scores(domain, features) - base)
        mean: F64 = np.array(shares) @ np.array(corrections)
        return base + mean

    def scores_with_std(self, domain: Domain, features: StrategyFeatures) -> tuple[F64, F64]:
        base = np.log(features.base_seconds)
        shares, corrections = [1.0 - self.weights.sum()], [np.zeros(len(base))]
        own_std = np.zeros(len(base))
        for share, model in self._counted():
            scores, own = model.scores_with_std(domain, features)
            shares.append(share)
            corrections.append(scores - base)
            own_std += share * own
        mean: F64 = np.array(shares) @ np.array(corrections)
        variance: F64 = np.array(shares) @ (np.array(corrections) - mean) ** 2
        return base + mean, np.sqrt(variance + own_std**2)

    def _counted(self) -> Iterator[tuple[float, LearnedModel]]:
        """The share of each model that has any, and the model."""
        for weight, models in zip(self.weights.tolist(), self.members, strict=True):
            for model in models if weight > 0 else ():
                yield weight / len(models), model

    def arrays(self) -> dict[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = {"weights": self.weights}
        for prefix, model in self._named_members():
            found |= nested(prefix, model.arrays())
        return found

    def array_forms(self, given: Arrays) -> dict[str, ArrayForm]:
        self._make_networks(self._count_networks(given))
        found = {"weights": ArrayForm((len(self.kinds),), rule=shares_of_one)}
        for prefix, model in self._named_members():
            found |= nested(prefix, model.array_forms(below(prefix, given)))
        return found

    def load(self, arrays: Arrays) -> None:
        self._make_networks(self._count_networks(arrays))
        self.start = self.weights = arrays["weights"]
        for prefix, model in self._named_members():
            model.load(below(prefix, arrays))

    def _closed_form(self, kind: MemberKind) -> LearnedModel:
        match kind:
            case "linear":
                return LinearModel()
            case "gaussian":
                return GaussianModel()
            case _:
                return TreesModel(self.seed)

    def _make_networks(self, count: int) -> None:
        """New ones, `count` of each kind, of different seeds."""
        self.networks = {}
        if not self.with_shards:
            return
        from autosync.simulator.learned.models.network_model import NetworkModel
        from autosync.simulator.learned.networks.network_training import TrainingSettings

        training = self.training or TrainingSettings(seed=self.seed)
        for kind in self.kinds:
            if kind not in CLOSED_FORMS:
                self.networks[kind] = tuple(
                    NetworkModel(cast(NetworkKind, kind), replace(training, seed=self.seed + fold))
                    for fold in range(count)
                )

    def _count_networks(self, given: Arrays) -> int:
        """Of each kind, in a checkpoint; FOLDS where none was ever trained."""
        names = [kind for kind in self.kinds if kind not in CLOSED_FORMS]
        several = any(below(f"{kind}1.", given) for kind in names)
        return 1 if not several and any(below(f"{kind}0.", given) for kind in names) else FOLDS

    def _named_members(self) -> Iterator[tuple[str, LearnedModel]]:
        """Every model by the prefix of their arrays: "linear0.", ..., "gat2."."""
        for name, models in zip(self.kinds, self.members, strict=True):
            for number, model in enumerate(models):
                yield f"{name}{number}.", model

    def _fit_left_out(self, kind: MemberKind, trials: LabelledTrials) -> F64:
        """Each trial's score by a network that left it out, `(n,)`. Networks that have learned from
        other domains stay as they are; without those, where trials are too few to learn from, the
        score is the timeline's."""
        from autosync.simulator.learned.models.network_model import FEWEST_FOR_NETWORK

        n, networks = len(trials.features), self.networks[kind]
        if self.start.any() or n < FEWEST_FOR_NETWORK:
            known = [each.scores(trials.domain, trials.features) for each in networks]
            mean: F64 = np.mean(known, axis=0)
            return mean
        folds, scores = fold_of(n, FOLDS, self.seed), np.empty(n)
        for fold, network in enumerate(networks):
            rows = np.flatnonzero(folds == fold)
            scores[rows] = network.fit_without(trials, rows)[rows]
        return scores

    def _weigh(self, left_out: F64, trials: LabelledTrials) -> F64:
        """The members' weights: of all, else of the closed forms alone, else 0: the first that
        beats the timeline significantly. A pretrained ensemble need not."""
        if left_out.shape[1] < FEWEST_FOR_RIDGE:
            return self.start
        base_seconds = trials.features.base_seconds
        residual = np.log(trials.step_seconds / base_seconds)
        residual = residual - np.median(residual)
        centered = left_out - np.median(left_out, axis=1, keepdims=True)
        loss = RobustLoss(residual, base_seconds)
        if self.start.any():
            return stacked_weights(centered, residual, loss, self.start)
        confidence = CONFIDENCE if self.training is None else self.training.confidence
        for candidates in (self.kinds, CLOSED_FORMS):
            of_these = np.array([name in candidates for name in self.kinds])
            weights = stacked_weights(centered * of_these[:, None], residual, loss)
            gain = loss(residual) - loss(residual - weights @ centered)
            if is_significant(gain, confidence):
                return weights
        return np.zeros(len(self.kinds))


def arrays_of(
    members: tuple[MemberKind, ...], arrays: Arrays, kinds: tuple[MemberKind, ...]
) -> dict[str, NDArray[Any]]:
    """What an ensemble of some of the members holds, of the arrays of one of `kinds`: their weights
    keep their proportions and their sum.

    Raises:
        InvalidInput: it has no such members, or no weights.
    """
    weights = arrays.get("weights")
    if weights is None or weights.shape != (len(kinds),) or not set(members) <= set(kinds):
        raise unfit(f"an ensemble of {', '.join(kinds)} has no members {', '.join(members)}")
    chosen = np.array([weights[kinds.index(kind)] for kind in members])
    shares = chosen if chosen.any() else np.ones(len(members))
    found: dict[str, NDArray[Any]] = {"weights": weights.sum() * shares / shares.sum()}
    for kind in members:
        found |= {name: each for name, each in arrays.items() if name.startswith(kind)}
    return found
