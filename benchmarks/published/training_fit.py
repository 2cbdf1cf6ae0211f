"""What replication adds to compute, fitted to published training runs: forms, and their errors on
systems that were left out of the fit."""

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Form = Callable[[F64, F64, F64], F64]
"""Of parameters, GPUs and GPUs of a node: the share by which compute takes longer."""


def _several(gpus: F64) -> F64:
    return (gpus > 1).astype(np.float64)


def _nodes(gpus: F64, each: F64) -> F64:
    return np.maximum(gpus / np.maximum(each, 1.0), 1.0)


FORMS: dict[str, tuple[int, Form]] = {
    "nothing": (0, lambda p, gpus, each: np.zeros_like(gpus)),
    "several, doublings of nodes": (
        2, lambda p, gpus, each: p[0] * _several(gpus) + p[1] * np.log2(_nodes(gpus, each))
    ),
}  # fmt: skip


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


def errors_at(rows: FitRows, form: str, parameters: F64) -> F64:
    """Relative errors left, `(n,)`. Compute is nearly all of these runs, so that what is added to
    it is added to them."""
    shares = FORMS[form][1]
    more = 1.0 + shares(parameters, rows.gpus, rows.gpus_per_node)
    before = 1.0 + shares(parameters, rows.base_gpus, rows.gpus_per_node)
    result: F64 = (1.0 + rows.errors) * before / more - 1.0
    return result


def fitted(rows: FitRows, form: str) -> F64:
    """The parameters of the least mean absolute error, none negative."""
    from scipy.optimize import minimize

    count = FORMS[form][0]
    if not count:
        return np.zeros(0)

    def loss(parameters: F64) -> float:
        return float(np.abs(errors_at(rows, form, np.maximum(parameters, 0.0))).mean())

    starts = (np.full(count, value) for value in (0.002, 0.01, 0.03))
    found = [minimize(loss, start, method="Nelder-Mead") for start in starts]
    best: F64 = np.maximum(min(found, key=lambda each: each.fun).x, 0.0)
    return best


def left_out_errors(rows: FitRows, form: str) -> F64:
    """Of each run at parameters that its group had no part in, `(n,)`."""
    errors = np.empty(len(rows.errors))
    for group in np.unique(rows.group):
        its = rows.group == group
        errors[its] = errors_at(rows.take(its), form, fitted(rows.take(~its), form))
    return errors
