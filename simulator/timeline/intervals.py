"""Sets of time intervals: their union, and how long two of them have in common."""

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


def union(starts: F64, stops: F64) -> F64:
    """The intervals in which at least one of the given ones runs: `(intervals, 2)` seconds, in
    order and apart."""
    order = np.argsort(starts, kind="stable")
    reached = np.maximum.accumulate(stops[order]) if len(order) else stops
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = starts[order][1:] > reached[:-1]
    ends = np.roll(begins, -1)
    return np.column_stack([starts[order][begins], reached[ends]])


def common_seconds(some: F64, others: F64) -> float:
    """Of two sets of intervals that are apart, `(n, 2)` and `(m, 2)`."""
    begins = np.maximum(some[:, :1], others[:, 0])
    ends = np.minimum(some[:, 1:], others[:, 1])
    return float(np.maximum(ends - begins, 0.0).sum())
