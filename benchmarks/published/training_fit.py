"""What replication adds to compute, fitted to published training runs, and errors of runs that were
left out of the fit: one share where there are several GPUs, and one for each doubling of nodes."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FitRows:
    """Runs predicted without what replication adds. n entries each: GPUs of the run and of the one
    it is predicted from, GPUs of a node, relative error, and the group that is left out."""

    gpus: F64
    base_gpus: F64
    gpus_per_node: F64
    errors: F64
    group: NDArray[np.str_]

    def take(self, chosen: NDArray[np.bool_]) -> "FitRows":
        return FitRows(*(getattr(self, each.name)[chosen] for each in fields(self)))


def added(shares: F64, gpus: F64, gpus_per_node: F64) -> F64:
    """By which share compute takes longer, `(n,)`. shares `(2,)`: where there are several GPUs, and
    for each doubling of nodes."""
    nodes = np.maximum(gpus / np.maximum(gpus_per_node, 1.0), 1.0)
    result: F64 = shares[0] * (gpus > 1) + shares[1] * np.log2(nodes)
    return result


def errors_at(rows: FitRows, shares: F64) -> F64:
    """Relative errors left, `(n,)`. Compute is nearly all of these runs, so that what is added to
    it is added to them."""
    more = 1.0 + added(shares, rows.gpus, rows.gpus_per_node)
    before = 1.0 + added(shares, rows.base_gpus, rows.gpus_per_node)
    result: F64 = (1.0 + rows.errors) * before / more - 1.0
    return result


def fitted(rows: FitRows) -> F64:
    """The shares `(2,)` of the least mean absolute error, none negative."""
    from scipy.optimize import minimize

    def loss(shares: F64) -> float:
        return float(np.abs(errors_at(rows, np.maximum(shares, 0.0))).mean())

    starts = (np.full(2, value) for value in (0.002, 0.01, 0.03))
    found = [minimize(loss, start, method="Nelder-Mead") for start in starts]
    best: F64 = np.maximum(min(found, key=lambda each: each.fun).x, 0.0)
    return best


def left_out_errors(rows: FitRows) -> F64:
    """Of each run at shares that its group had no part in, `(n,)`."""
    errors = np.empty(len(rows.errors))
    for group in np.unique(rows.group):
        its = rows.group == group
        errors[its] = errors_at(rows.take(its), fitted(rows.take(~its)))
    return errors
