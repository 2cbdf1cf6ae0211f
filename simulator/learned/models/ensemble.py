"""Several models at once, by stacked regression (Breiman, 1996): the sum of their corrections,
weighed by errors on trials left out.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.learned.models.learned_model import (
    FittedScores,
    LabelledTrials,
    LearnedModel,
    make_model,
)
from autosync.simulator.learned.models.left_out_trials import (
    RobustLoss,
    is_significant,
)
from autosync.simulator.learned.models.model_arrays import (
    ArrayForm,
    Arrays,
    below,
    nested,
    shares_of_one,
    unfit,
)
from autosync.simulator.learned.models.recipe import MEMBER_KINDS, MemberKind, Recipe

F64 = NDArray[np.float64]

PRIOR_SHARES: dict[MemberKind, float] = {
    "gaussian": 2.0,
    "trees": 2.0,
    "lstm": 1.0,
    "gat": 1.0,
}
"""What the corrections of members that learned from other domains count for at first, up to a
factor. Networks, which rank unseen models a point worse than process and trees, count half
(docs/learned.md)."""


FEWEST_FOR_WEIGHTS = 8
"""Fewer trials tell nothing of the members that holds for the next strategy."""


class EnsembleModel:
    """score = log seconds of the timeline + the sum of each member's correction times its weight.

    A member is a model of a kind. weights f64[members]: as `stacked_weights` finds them on trials
    that no member was fitted to; networks learn from other domains alone. start: the weights before
    any trial: 0, or PRIOR_SHARES after `pretrain`. The standard deviation is that of the members'
    corrections (the timeline's 0 is one of them) and that of the closed forms, which err together.
    """

    def __init__(self, members: tuple[MemberKind, ...] = MEMBER_KINDS, seed: int = 0) -> None:
        self.seed = seed
        self.recipe = Recipe("ensemble", members=members)
        self.members = tuple(make_model(Recipe(kind), seed) for kind in members)
        self.with_shards = any(member.with_shards for member in self.members)
        self.start = self.weights = np.zeros(len(members))

    def fit(self, trials: LabelledTrials) -> FittedScores:
        base = np.log(trials.features.base_seconds)
        scores = [member.fit(trials).scores for member in self.members]
        left_out = np.array(scores) - base
        self.weights = self._weigh(left_out, trials)
        return FittedScores(base + self.weights @ left_out, np.ones(len(base), dtype=np.bool_))

    def pretrain(self, sources: Sequence[LabelledTrials], importance: F64) -> None:
        for member in self.members:
            member.pretrain(sources, importance)
        shares = np.array([PRIOR_SHARES[kind] for kind in self.recipe.members])
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
        """The weight of each member that has any, and the member."""
        for weight, member in zip(self.weights.tolist(), self.members, strict=True):
            if weight > 0:
                yield weight, member

    def arrays(self) -> dict[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = {"weights": self.weights}
        for prefix, member in self._named_members():
            found |= nested(prefix, member.arrays())
        return found

    def array_forms(self, given: Arrays) -> dict[str, ArrayForm]:
        found = {"weights": ArrayForm((len(self.members),), rule=shares_of_one)}
        for prefix, member in self._named_members():
            found |= nested(prefix, member.array_forms(below(prefix, given)))
        return found

    def load(self, arrays: Arrays) -> None:
        self.start = self.weights = arrays["weights"]
        for prefix, member in self._named_members():
            member.load(below(prefix, arrays))

    def _named_members(self) -> Iterator[tuple[str, LearnedModel]]:
        """Every member by the prefix of its arrays: "gaussian0.", ..., "gat0."."""
        for kind, member in zip(self.recipe.members, self.members, strict=True):
            yield f"{kind}0.", member

    def _weigh(self, left_out: F64, trials: LabelledTrials) -> F64:
        """The members' weights; 0 where they do not beat the timeline significantly, which a
        pretrained ensemble need not."""
        if left_out.shape[1] < FEWEST_FOR_WEIGHTS:
            return self.start
        base_seconds = trials.features.base_seconds
        residual = np.log(trials.step_seconds / base_seconds)
        residual = residual - np.median(residual)
        centered = left_out - np.median(left_out, axis=1, keepdims=True)
        loss = RobustLoss(residual, base_seconds)
        if self.start.any():
            return stacked_weights(centered, residual, loss, self.start)
        weights = stacked_weights(centered, residual, loss)
        gain = loss(residual) - loss(residual - weights @ centered)
        return weights if is_significant(gain) else np.zeros(len(self.members))


def arrays_of(
    members: tuple[MemberKind, ...], arrays: Arrays, kinds: tuple[str, ...]
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


WEIGHT_STD = 0.25
"""Standard deviation of the prior of the weights, whose mean are equal ones: a few dozen trials
move them little, hundreds decide."""
LEAST_WEIGHT = 0.01
"""A part with less weight gets none: its prediction is not worth the time."""


def stacked_weights(
    left_out: F64, residual: F64, loss: RobustLoss, expected: F64 | None = None
) -> F64:
    """Weights of the parts, `(parts,)`: none negative, their sum at most 1, with the least loss of
    the residual less the weighted corrections. The rest of 1 is the weight of no correction.

    left_out f64[parts, n]: each part's corrections of trials that it was not fitted to, log seconds
    of median 0, like the residual f64[n]. The loss has the term of a normal prior, whose mean are
    the weights `expected`, by default equal ones of the parts that correct anything, and whose
    deviation is WEIGHT_STD, with the misses of these weights for noise.
    """
    from scipy.optimize import minimize  # loads for long; rankings fit nothing

    correcting = left_out.any(axis=1)
    prior = np.asarray(correcting, dtype=np.float64) / max(int(correcting.sum()), 1)
    if expected is not None:
        prior = expected
    noise = float(loss(residual - prior @ left_out).mean())
    if noise == 0.0 or not correcting.any():
        return prior
    corrections, mean, count = left_out[correcting], prior[correcting], len(residual)
    pull = 1.0 / (count * WEIGHT_STD**2)

    def objective(weights: F64) -> tuple[float, F64]:
        misses = residual - weights @ corrections
        away = weights - mean
        slope = -(corrections @ loss.slope(misses)) / (count * noise) + 2.0 * pull * away
        return float(loss(misses).mean() / noise + pull * (away**2).sum()), slope

    room = {"type": "ineq", "fun": lambda w: 1.0 - w.sum(), "jac": lambda w: -np.ones_like(w)}
    found = minimize(
        objective,
        mean,
        method="SLSQP",
        jac=True,
        bounds=[(0.0, 1.0)] * len(mean),
        constraints=[room],
        options={"ftol": 1e-10},
    )
    weights = np.zeros(len(left_out))
    weights[correcting] = np.where(found.x < LEAST_WEIGHT, 0.0, found.x)
    result: F64 = weights / max(1.0, float(weights.sum()))
    return result
