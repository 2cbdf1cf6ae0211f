"""Extremely randomized trees on the summary of a strategy: grown by scikit-learn, kept as arrays,
read without it, stored without pickle.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.cancellation import check_cancelled
from autosync.domain import Domain
from autosync.simulator.learned.features.feature_names import SUMMARY_COLUMNS
from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.learned.models.learned_model import FittedScores, LabelledTrials
from autosync.simulator.learned.models.left_out_trials import (
    FOLDS,
    RobustLoss,
    fold_of,
    is_significant,
)
from autosync.simulator.learned.models.model_arrays import (
    ArrayFields,
    ArrayForm,
    Arrays,
    below,
    finite,
    forms_if_given,
    nested,
)
from autosync.simulator.learned.models.recipe import Recipe
from autosync.simulator.learned.models.source_trials import (
    KnownTrials,
    SourceTrials,
    kept_trials,
)

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

TREES = 64
LEAST_OF_A_LEAF = 3
"""Trials: one alone is noise (held-out domains rank 2.4 points worse with 1)."""
COLUMNS_TRIED = 0.5
"""Share of the columns among which a split is chosen."""
LEAF = -1


@dataclass(frozen=True, slots=True)
class Forest(ArrayFields):
    """The splits of K trees, of N nodes at most; node 0 is the root.

    column, left, right i16[K, N]: a node's column and its children, which come after it; LEAF
        where it has none, and in what a smaller tree leaves empty.
    threshold f32[K, N]: what is at most this goes left.
    """

    column: NDArray[np.int16]
    left: NDArray[np.int16]
    right: NDArray[np.int16]
    threshold: NDArray[np.float32]

    def leaves(self, table: NDArray[np.floating[Any]]) -> I64:
        """The leaf of each strategy in each tree, `(n, F)` to `(n, K)`."""
        trees, nodes = self.left.shape
        first = nodes * np.arange(trees)  # of each tree, where all nodes stand in one row
        below = np.stack((self.right, self.left), axis=-1).astype(np.int64)
        below = np.where(below == LEAF, np.arange(nodes)[:, None], below) + first[:, None, None]
        below, column = below.ravel(), self.column.ravel().astype(np.int64)
        threshold, values = self.threshold.ravel(), table.astype(np.float32)
        row = values.shape[1] * np.arange(len(values))[:, None]
        values, node = values.ravel(), np.tile(first, (len(values), 1))
        while True:  # `take` of one row is several times as fast as two indices
            goes_left = values.take(row + column.take(node)) <= threshold.take(node)
            after = below.take(2 * node + goes_left)
            if (after == node).all():
                break
            node = after
        result: I64 = node - first
        return result

    def leaf_means(self, leaves: I64, target: F64, weights: F64) -> F64:
        """The weighted mean target of the trials in each leaf, `(K, N)`, 0 in an empty one.
        leaves i64[T, K]; target, weights f64[T]."""
        sums, counts = self.leaf_sums(leaves, target * weights), self.leaf_sums(leaves, weights)
        result: F64 = np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0)
        return result

    def leaf_sums(self, leaves: I64, values: F64) -> F64:
        """`(K, N)`: the sum of `values` f64[T] over the trials in each leaf."""
        trees, nodes = self.left.shape
        cell = leaves + nodes * np.arange(trees)
        sums = np.bincount(cell.ravel(), weights=np.repeat(values, trees), minlength=trees * nodes)
        return sums.reshape(trees, nodes).astype(np.float64)

    @staticmethod
    def array_forms(columns: int, given: Arrays) -> dict[str, ArrayForm]:
        sound = [given[name].shape for name in ("left", "right") if _is_table(given.get(name))]
        shape = sound[0] if sound else (1, 1)

        def of_a_table(array: NDArray[Any]) -> str:
            return "" if ((array >= 0) & (array < columns)).all() else "names no column"

        def after_the_node(array: NDArray[Any]) -> str:
            ahead = (array > np.arange(shape[1])) & (array < shape[1])
            return "" if (ahead | (array == LEAF)).all() else "is no tree"

        return {
            "column": ArrayForm(shape, np.int16, of_a_table),
            "left": ArrayForm(shape, np.int16, after_the_node),
            "right": ArrayForm(shape, np.int16, after_the_node),
            "threshold": ArrayForm(shape, np.float32, finite),
        }


def grown_forest(
    table: NDArray[np.float32], target: F64, weights: F64, seed: int, trees: int = TREES
) -> Forest:
    """Extremely randomized trees (Geurts, Ernst and Wehenkel, 2006), by scikit-learn.

    table `(T, F)`; target f64[T]: what a leaf's trials shall have in common; weights f64[T].
    """
    from sklearn.ensemble import ExtraTreesRegressor  # loads for a second; only where trees grow

    regressor = ExtraTreesRegressor(
        trees,
        min_samples_leaf=LEAST_OF_A_LEAF,
        max_features=COLUMNS_TRIED,
        random_state=seed,
        n_jobs=1,
    ).fit(table, target, sample_weight=weights)
    grown = [each.tree_ for each in regressor.estimators_]
    shape = len(grown), max(tree.node_count for tree in grown)
    column, threshold = np.zeros(shape, np.int16), np.zeros(shape, np.float32)
    left, right = np.full(shape, LEAF, np.int16), np.full(shape, LEAF, np.int16)
    for k, tree in enumerate(grown):
        inner = np.flatnonzero(tree.children_left != LEAF)
        column[k, inner] = tree.feature[inner]
        threshold[k, inner] = _rounded_down(tree.threshold[inner])
        left[k, inner], right[k, inner] = tree.children_left[inner], tree.children_right[inner]
    return Forest(column, left, right, threshold)


def _is_table(array: NDArray[Any] | None) -> bool:
    return array is not None and array.ndim == 2 and array.size > 0


def _rounded_down(thresholds: F64) -> NDArray[np.float32]:
    """The largest f32 that is not above: a value of f32 lies on the same side of both."""
    near = thresholds.astype(np.float32)
    return np.where(near > thresholds, np.nextafter(near, np.float32(-np.inf)), near)


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
        columns = len(SUMMARY_COLUMNS)
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
        known = self.known.related(descriptor)
        residual, weights = known.residual, known.weight
        leaves = self.forest.leaves(known.summary)
        mine = slice(len(known) - len(self.known.own), None)
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
            known = self.known.related(descriptor)
            leaves = self.forest.leaves(known.summary)
            means = self.forest.leaf_means(leaves, known.residual, known.weight)
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
