"""A Gaussian process on the log residual of a simulator: what similar strategies were off by.

Strategies whose summaries are near each other err alike, so a few dozen trials tell much about
hundreds, and far from all trials the simulator beneath is left as it is. The kernel is
exp(-distance^2 / 2 length^2) + linear * inner product, both per column of the standardised
summary, times the variance of the residuals. Its settings are those with the least leave-one-out
error, which is exact.
"""

from dataclasses import astuple, dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.simulator.learned.models.model_arrays import (
    ArrayForm,
    Arrays,
    not_negative,
    positive,
)
from autosync.simulator.learned.models.robust_loss import RobustLoss, is_significant

F64 = NDArray[np.float64]

LENGTHS = (0.5, 1.0, 2.0)
LINEAR = (0.0, 0.1)
NOISES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Of the fastest strategies, over the variance of the residuals; slower ones have more."""
FEWEST_FOR_PROCESS = 16
"""Fewer do not tell 36 settings from chance."""
MOST_OF_A_SOURCE = 96
"""Trials of a domain in a process for several: twice as many take eight times as long."""
BOUND = 4.0
"""Standard deviations to which a column's value is clipped."""
LARGEST = 1.0
"""Log seconds to which a correction is clipped."""


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """length: of the kernel, in root mean squares of standardised columns. linear: share of the
    linear kernel. noise: variance of the fastest strategies' noise over that of the residuals."""

    length: float
    linear: float
    noise: float


SETTINGS = tuple(KernelSettings(*each) for each in product(LENGTHS, LINEAR, NOISES))
POOLED = tuple(each for each in SETTINGS if each.length >= 1.0 and each.noise >= 0.1)
"""For several domains, whose strategies are less alike."""


@dataclass(frozen=True, slots=True)
class GaussianProcess:
    """A fitted process of T trials over F columns.

    center, scale f64[F]: scale is infinite where a column did not vary. known f64[T, F]:
    standardised. coefficients f64[T]; precision f64[T, T]: inverse of kernel and noise. variance:
    of the residuals.
    """

    center: F64
    scale: F64
    known: F64
    coefficients: F64
    precision: F64
    setting: KernelSettings
    variance: float

    def correction(self, table: F64) -> F64:
        """Log seconds, `(n, F)` to `(n,)`."""
        kernel = _kernel(self.standard(table), self.known, self.setting)
        result: F64 = np.clip(kernel @ self.coefficients, -LARGEST, LARGEST)
        return result

    def std(self, table: F64) -> F64:
        """Standard deviation of the correction that the trials leave open, `(n,)`."""
        standard = self.standard(table)
        kernel = _kernel(standard, self.known, self.setting)
        own = 1.0 + self.setting.linear * (standard**2).mean(axis=1)
        left: F64 = own - np.einsum("ij,jk,ik->i", kernel, self.precision, kernel, optimize=True)
        return np.sqrt(self.variance * np.maximum(left, 0.0))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """By the names that checkpoints hold."""
        return {
            "center": self.center,
            "scale": self.scale,
            "known": self.known,
            "coefficients": self.coefficients,
            "precision": self.precision,
            "setting": np.array(astuple(self.setting)),
            "variance": np.array([self.variance]),
        }

    @staticmethod
    def array_forms(columns: int, given: Arrays) -> dict[str, ArrayForm]:
        """A process has as many trials as it has coefficients."""
        coefficients = given.get("coefficients")
        trials = coefficients.size if coefficients is not None else 1
        return {
            "center": ArrayForm((columns,)),
            "scale": ArrayForm((columns,), rule=positive),
            "known": ArrayForm((trials, columns)),
            "coefficients": ArrayForm((trials,)),
            "precision": ArrayForm((trials, trials)),
            "setting": ArrayForm((3,), rule=not_negative),
            "variance": ArrayForm((1,), rule=not_negative),
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> "GaussianProcess":
        return cls(
            center=arrays["center"],
            scale=arrays["scale"],
            known=arrays["known"],
            coefficients=arrays["coefficients"],
            precision=arrays["precision"],
            setting=KernelSettings(*(float(value) for value in arrays["setting"])),
            variance=float(arrays["variance"][0]),
        )

    def standard(self, table: F64) -> F64:
        """Standardised columns, `(n, F)`."""
        return _standard(table, self.center, self.scale)


def fit_gaussian(table: F64, target: F64, base_seconds: F64) -> tuple[GaussianProcess | None, F64]:
    """The process with the least leave-one-out error, and each trial's left-out correction.

    table f64[T, F]; target f64[T]: log of measured over base seconds. base_seconds f64[T]: the
    slower, the less exact: a trial's noise is taken to grow with them, so that the fastest
    strategies, which a search is after, count most. None, and corrections of zero, where the
    left-out error does not fall significantly.
    """
    nothing = np.zeros(len(target))
    if len(target) < FEWEST_FOR_PROCESS:
        return None, nothing
    residual = target - np.median(target)
    loss = RobustLoss(residual, base_seconds)
    variance = float(residual.var())
    if variance < 1e-12:
        return None, nothing
    center, std = table.mean(axis=0), table.std(axis=0)
    scale = np.where(std > 1e-9, std, np.inf)
    known = _standard(table, center, scale)
    best, left_out, precision = SETTINGS[0], nothing, np.zeros((0, 0))
    least = np.inf
    for setting in SETTINGS:
        inverse = _precision(known, loss.importance, setting)
        misses = inverse @ residual / np.diag(inverse)
        if (error := float(loss(misses).mean())) < least:
            least, best, left_out, precision = error, setting, residual - misses, inverse
    if not is_significant(loss(residual) - loss(residual - left_out)):
        return None, nothing
    fitted = GaussianProcess(center, scale, known, precision @ residual, precision, best, variance)
    return fitted, np.clip(left_out, -LARGEST, LARGEST)


def fit_pooled_gaussian(
    tables: list[F64], targets: list[F64], base_seconds: list[F64], importance: F64
) -> GaussianProcess | None:
    """One process for several domains, each with a level of its own.

    importance f64[domains]: how much a domain's trials count. The setting is chosen by leaving
    domains out, so that it suits one not seen; None where no setting helps those left out.
    """
    some = [np.linspace(0, len(t) - 1, min(len(t), MOST_OF_A_SOURCE)).astype(int) for t in tables]
    tables = [table[rows] for table, rows in zip(tables, some, strict=True)]
    targets = [target[rows] for target, rows in zip(targets, some, strict=True)]
    residuals = [target - np.median(target) for target in targets]
    losses = [
        RobustLoss(residual, base[rows])
        for residual, base, rows in zip(residuals, base_seconds, some, strict=True)
    ]
    weights = [each * loss.importance for each, loss in zip(importance, losses, strict=True)]
    center = np.mean([table.mean(axis=0) for table in tables], axis=0)
    std = np.sqrt(np.mean([((table - center) ** 2).mean(axis=0) for table in tables], axis=0))
    scale = np.where(std > 1e-9, std, np.inf)
    standard = [_standard(table, center, scale) for table in tables]
    variance = float(np.mean([residual.var() for residual in residuals]))

    def fit(used: list[int], setting: KernelSettings) -> GaussianProcess:
        known = np.concatenate([standard[k] for k in used])
        precision = _precision(known, np.concatenate([weights[k] for k in used]), setting)
        coefficients = precision @ np.concatenate([residuals[k] for k in used])
        return GaussianProcess(center, scale, known, coefficients, precision, setting, variance)

    everyone = list(range(len(tables)))
    best: KernelSettings | None = None
    least = np.mean([loss(miss).mean() for loss, miss in zip(losses, residuals, strict=True)])
    for setting in POOLED:
        errors = []
        for left in everyone:
            others = [k for k in everyone if k != left] or [left]
            miss = residuals[left] - fit(others, setting).correction(tables[left])
            errors.append(losses[left](miss - np.median(miss)).mean())
        if (error := np.mean(errors)) < least:
            best, least = setting, error
    return None if best is None else fit(everyone, best)


def _kernel(left: F64, right: F64, setting: KernelSettings) -> F64:
    inner = left @ right.T / left.shape[1]
    squares = (left**2).mean(axis=1)[:, None] + (right**2).mean(axis=1)[None, :]
    distance = np.maximum(squares - 2.0 * inner, 0.0)
    result: F64 = np.exp(-0.5 * distance / setting.length**2) + setting.linear * inner
    return result


def _precision(known: F64, importance: F64, setting: KernelSettings) -> F64:
    noisy = _kernel(known, known, setting) + np.diag(setting.noise / importance)
    return np.asarray(np.linalg.inv(noisy), dtype=np.float64)


def _standard(table: F64, center: F64, scale: F64) -> F64:
    result: F64 = np.clip((table - center) / scale, -BOUND, BOUND)
    return result
