"""Extremely randomized trees on the summary of a strategy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.cancellation import check_cancelled
from autosync.domain import Domain
from autosync.simulator.learned.features.feature_names import FEATURE_PARTS, summary_columns
from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.learned.models.forest import Forest, grown_forest
from autosync.simulator.learned.models.learned_model import FittedScores, LabelledTrials
from autosync.simulator.learned.models.model_arrays import (
    ArrayForm,
    Arrays,
    below,
    forms_if_given,
    nested,
)
from autosync.simulator.learned.models.recipe import Recipe
from autosync.simulator.learned.models.robust_loss import RobustLoss, is_significant
from autosync.simulator.learned.models.source_trials import (
    KnownTrials,
    SourceTrials,
    kept_trials,
)
from autosync.simulator.learned.models.trial_folds import FOLDS, fold_of

F64 = NDArray[np.float64]

FEWEST_FOR_TREES = 16
"""Fewer trials of one domain leave trees without a split worth its name."""


class TreesModel:
    """Corrects the timeline by the mean of trees. The splits stay as they were grown; what a leaf
    says is the weighted mean of the trials in it, so that other domains count by their likeness to
    the one at hand, and its own trials join them without growing trees again.

    forest: None where nothing significant was learned.
    """

    with_shards = False
    recipe = Recipe("trees")

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.known = KnownTrials()
        self.forest: Forest | None = None
        self._means: tuple[bytes, F64] | None = None

    def fit(self, trials: LabelledTrials) -> FittedScores:
        base, descriptor = np.log(trials.features.base_seconds), trials.features.descriptor
        own = kept_trials([trials], most=None)
        corrections = np.zeros(len(own))
        if self.known.sources is None:
            self.forest, corrections = grown_alone(own, self.seed)
            self._learn(KnownTrials(None, own))
        elif self.forest is not None:
            self._learn(KnownTrials(self.known.sources))
            own = own.at_level_of(self._corrections(descriptor, own.summary).mean(axis=1))
            self._learn(KnownTrials(self.known.sources, own))
            corrections = self._left_out(descriptor)
        return FittedScores(base + corrections, np.ones(len(base), dtype=np.bool_))

    def pretrain(self, sources: Sequence[LabelledTrials], importance: F64) -> None:
        kept = kept_trials(sources)
        self._learn(KnownTrials(kept))
        weights = importance[kept.source] * kept.speed
        self.forest = grown_forest(kept.summary, kept.residual, weights, self.seed)

    def scores(self, domain: Domain, features: StrategyFeatures) -> F64:
        return self.scores_with_std(domain, features)[0]

    def scores_with_std(self, domain: Domain, features: StrategyFeatures) -> tuple[F64, F64]:
        base = np.log(features.base_seconds)
        if self.forest is None:
            return base, np.zeros(len(base))
        corrections = self._corrections(features.descriptor, features.summary)
        return base + corrections.mean(axis=1), corrections.std(axis=1)

    def arrays(self) -> dict[str, NDArray[Any]]:
        if self.forest is None:
            return {}
        return nested("forest.", self.forest.arrays()) | self.known.arrays()

    def array_forms(self, given: Arrays) -> dict[str, ArrayForm]:
        columns = len(summary_columns(FEATURE_PARTS))
        forest = Forest.array_forms(columns, below("forest.", given))
        found = forms_if_given("forest.", forest, given)
        return found | KnownTrials.array_forms(columns, given) if found else {}

    def load(self, arrays: Arrays) -> None:
        if forest := below("forest.", arrays):
            self.forest = Forest.from_arrays(forest)
            self._learn(KnownTrials.from_arrays(arrays))

    def _learn(self, known: KnownTrials) -> None:
        self.known, self._means = known, None

    def _left_out(self, descriptor: F64) -> F64:
        """The correction of each of the domain's trials by all others, `(n,)`."""
        assert self.forest is not None
        assert self.known.own is not None
        table, residual, weights = self.known.counted(descriptor)
        leaves = self.forest.leaves(table)
        mine = slice(len(table) - len(self.known.own), None)
        cell = np.arange(len(self.forest.left)), leaves[mine]
        total = self.forest.leaf_sums(leaves, weights)[cell]
        others = total - weights[mine, None]
        sums = self.forest.leaf_sums(leaves, residual * weights)[cell]
        sums = sums - (residual * weights)[mine, None]
        means = np.divide(sums, others, out=np.zeros_like(sums), where=others > 1e-9 * total)
        result: F64 = means.mean(axis=1)
        return result

    def _corrections(self, descriptor: F64, table: NDArray[np.floating[Any]]) -> F64:
        """Of each tree, `(n, trees)` log seconds, for a domain; the last one's means are kept."""
        assert self.forest is not None
        if self._means is None or self._means[0] != descriptor.tobytes():
            known, residual, weights = self.known.counted(descriptor)
            means = self.forest.leaf_means(self.forest.leaves(known), residual, weights)
            self._means = descriptor.tobytes(), means
        means = self._means[1]
        result: F64 = means[np.arange(len(means)), self.forest.leaves(table)]
        return result


def grown_alone(own: SourceTrials, seed: int) -> tuple[Forest | None, F64]:
    """Trees of the trials of one domain, where they help those left out; and the correction of each
    trial by trees that left it out, `(n,)`."""
    corrections = np.zeros(len(own))
    if len(own) < FEWEST_FOR_TREES:
        return None, corrections
    folds = fold_of(len(own), FOLDS, seed)
    for fold in range(FOLDS):
        check_cancelled()
        known, held = folds != fold, folds == fold
        target, weights = own.residual[known], own.speed[known]
        forest = grown_forest(own.summary[known], target, weights, seed)
        means = forest.leaf_means(forest.leaves(own.summary[known]), target, weights)
        trees = np.arange(len(means))
        corrections[held] = means[trees, forest.leaves(own.summary[held])].mean(axis=1)
    loss = RobustLoss(own.residual, 1.0 / own.speed)
    if not is_significant(loss(own.residual) - loss(own.residual - corrections)):
        return None, np.zeros(len(own))
    return grown_forest(own.summary, own.residual, own.speed, seed), corrections
