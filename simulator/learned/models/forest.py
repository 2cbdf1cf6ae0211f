"""Decision trees as arrays: grown by scikit-learn, read without it, stored without pickle."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.simulator.learned.models.model_arrays import ArrayForm, Arrays, finite

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

TREES = 64
LEAST_OF_A_LEAF = 3
"""Trials: one alone is noise (held-out domains rank 2.4 points worse with 1)."""
COLUMNS_TRIED = 0.5
"""Share of the columns among which a split is chosen."""
LEAF = -1


@dataclass(frozen=True, slots=True)
class Forest:
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

    def arrays(self) -> dict[str, NDArray[Any]]:
        """By the names that checkpoints hold."""
        return {
            "column": self.column,
            "left": self.left,
            "right": self.right,
            "threshold": self.threshold,
        }

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

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> "Forest":
        return cls(arrays["column"], arrays["left"], arrays["right"], arrays["threshold"])


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
