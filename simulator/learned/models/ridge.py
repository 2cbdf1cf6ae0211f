"""Ridge regression on the residual: the log of measured over predicted seconds."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.simulator.learned.models.model_arrays import ArrayForm, Arrays, positive
from autosync.simulator.learned.models.robust_loss import is_significant

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

PENALTIES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Ridge penalties to choose from; beside them there is the base simulator alone."""
FEWEST_FOR_RIDGE = 8
"""Fewer trials tell nothing that holds for the next strategy."""
BOUND = 8.0
"""Standard deviations to which a column's value is clipped."""


@dataclass(frozen=True, slots=True)
class Ridge:
    """correction = clip((x - center) / scale) . weights; log seconds.

    scale is infinite where a column did not vary. penalty: infinite when the base stands alone.
    covariance `(columns, columns)`: of the weights.
    """

    center: F64
    scale: F64
    weights: F64
    penalty: float
    covariance: F64

    def correction(self, table: F64) -> F64:
        """`(n, columns)` to `(n,)`; bounded, since it extrapolates badly."""
        result: F64 = np.clip(self.standard(table) @ self.weights, -1.0, 1.0)
        return result

    def std(self, table: F64) -> F64:
        """Standard deviation of the correction that the trials leave open, `(n,)`."""
        standard = self.standard(table)
        variance: F64 = np.einsum("ij,jk,ik->i", standard, self.covariance, standard)
        return np.sqrt(np.maximum(variance, 0.0))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """By the names that checkpoints hold."""
        return {
            "center": self.center,
            "scale": self.scale,
            "weights": self.weights,
            "penalty": np.array([self.penalty]),
            "covariance": self.covariance,
        }

    @staticmethod
    def array_forms(columns: int) -> dict[str, ArrayForm]:
        return {
            "center": ArrayForm((columns,)),
            "scale": ArrayForm((columns,), rule=positive),
            "weights": ArrayForm((columns,)),
            "penalty": ArrayForm((1,), rule=positive),
            "covariance": ArrayForm((columns, columns)),
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> "Ridge":
        return cls(
            center=arrays["center"],
            scale=arrays["scale"],
            weights=arrays["weights"],
            penalty=float(arrays["penalty"][0]),
            covariance=arrays["covariance"],
        )

    def standard(self, table: F64) -> F64:
        """Standardised columns, `(n, columns)`."""
        result: F64 = np.clip((table - self.center) / self.scale, -BOUND, BOUND)
        return result


def fit_ridge(table: F64, target: F64, prior: Ridge | None = None) -> tuple[Ridge, F64]:
    """The ridge whose penalty ranks best by leave-one-out; and each trial's left-out correction.

    table `(n, columns)`; target `(n,)`: log of measured over base seconds. prior: of other
    domains; then weights are drawn to its weights rather than to zero, and the prior alone is
    what must be beaten. Where no penalty beats that beyond CONFIDENCE, it stands alone.
    """
    if prior is None:
        prior = _flat(table)
    known = prior.standard(table) @ prior.weights
    residual = target - known
    residual = residual - np.median(residual) if len(residual) else residual
    if len(target) < FEWEST_FOR_RIDGE:
        return prior, known
    own = table.std(axis=0)
    scale = np.where(np.isfinite(prior.scale), prior.scale, np.where(own > 1e-9, own, np.inf))
    center = np.where(np.isfinite(prior.scale), prior.center, table.mean(axis=0))
    weights = np.where(np.isfinite(prior.scale), prior.weights, 0.0)
    start = Ridge(center, scale, weights, np.inf, np.zeros((len(scale), len(scale))))
    standard = start.standard(table)
    left_out = [leave_one_out(standard, residual, penalty) for penalty in PENALTIES]
    best = int(np.argmin([np.mean((residual - guess) ** 2) for guess in left_out]))
    gain = residual**2 - (residual - left_out[best]) ** 2
    if not is_significant(gain):
        return start, known
    penalty = PENALTIES[best]
    step = ridge_weights(standard, residual, penalty)
    variance = float(np.mean((residual - left_out[best]) ** 2))
    gram: F64 = standard.T @ standard + penalty * np.eye(len(step))
    covariance: F64 = np.asarray(variance * np.linalg.inv(gram), dtype=np.float64)
    fitted = Ridge(center, scale, weights + step, penalty, covariance)
    return fitted, known + left_out[best]


def fit_pooled(
    tables: list[F64], targets: list[F64], importance: F64, shared: NDArray[np.bool_]
) -> Ridge:
    """One ridge for several domains; each has its own level, so only orders within count.

    shared `(columns,)`: columns whose weight means the same in every domain, and whose 0 does; the
    others get no weight. importance `(domains,)`: a domain's weight in the sum of squares. The
    penalty is chosen by leaving domains out, so that it suits a domain not seen.
    """
    centered = [table - table.mean(axis=0) for table in tables]
    std = np.concatenate(centered).std(axis=0)
    scale = np.where((std > 1e-9) & shared, std, np.inf)
    standard = [np.asarray(table / scale, dtype=np.float64) for table in centered]
    residual = [np.asarray(target - target.mean(), dtype=np.float64) for target in targets]
    weight = [float(each) ** 0.5 for each in importance]

    def solve(used: list[int], penalty: float) -> F64:
        x = np.concatenate([standard[k] * weight[k] for k in used])
        y = np.concatenate([residual[k] * weight[k] for k in used])
        return ridge_weights(x, y, penalty)

    choices = (*PENALTIES, np.inf)
    everyone = list(range(len(tables)))
    losses = np.zeros(len(choices))
    for left in everyone:
        others = [k for k in everyone if k != left] or [left]
        for number, penalty in enumerate(choices):
            guess = standard[left] @ solve(others, penalty)
            losses[number] += float(np.mean((residual[left] - guess) ** 2))
    best = float(choices[int(np.argmin(losses))])
    size = len(scale)
    return Ridge(np.zeros(size), scale, solve(everyone, best), best, np.zeros((size, size)))


def ridge_weights(table: F64, target: F64, penalty: float) -> F64:
    """Weights `(columns,)` of the penalised least squares; zero at an infinite penalty."""
    if not np.isfinite(penalty):
        return np.zeros(table.shape[1])
    gram = table.T @ table + penalty * np.eye(table.shape[1])
    return np.asarray(np.linalg.solve(gram, table.T @ target), dtype=np.float64)


def leave_one_out(table: F64, target: F64, penalty: float) -> F64:
    """Each trial's prediction by the fit to the others (exact, from the hat matrix), `(n,)`."""
    gram = table.T @ table + penalty * np.eye(table.shape[1])
    hat = table @ np.linalg.solve(gram, table.T)
    error = (target - hat @ target) / np.maximum(1.0 - np.diag(hat), 1e-6)
    result: F64 = target - error
    return result


def _flat(table: F64) -> Ridge:
    width = table.shape[1]
    return Ridge(
        np.zeros(width), np.full(width, np.inf), np.zeros(width), np.inf, np.zeros((width, width))
    )
