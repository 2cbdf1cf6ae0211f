"""A physical simulator first, what trials teach second: ridge regression on the log residual."""

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import Population
from simulator.compiled import compile_plans_fast
from simulator.learned.features import features
from simulator.timeline import TimelineSimulator

PENALTIES = (0.1, 1.0, 10.0, 100.0, np.inf)
"""Ridge penalties to choose from; infinity trusts the timeline alone."""


class ResidualSimulator:
    """seconds = timeline(strategy) * exp(features . weights).

    The penalty is chosen by leave-one-out error on the trials; infinity is among the choices, so
    that few or misleading trials leave the timeline as it is.
    """

    name = "timeline+residual"

    def __init__(self) -> None:
        self._timeline = TimelineSimulator()
        self._weights: NDArray[np.float64] | None = None
        self._center = np.zeros(0)
        self._scale = np.zeros(0)
        self._offset = 0.0
        self.penalty = float(np.inf)

    def predict(self, domain: Domain, population: Population) -> NDArray[np.float64]:
        base, table = self._inputs(domain, population)
        if self._weights is None:
            return base
        standard = (table - self._center) / self._scale
        correction = np.clip(standard @ self._weights, -1.0, 1.0)
        result: NDArray[np.float64] = base * np.exp(correction + self._offset)
        return result

    def refit(
        self, domain: Domain, population: Population, step_seconds: NDArray[np.float64]
    ) -> None:
        base, table = self._inputs(domain, population)
        target = np.log(step_seconds / base)
        self._center, self._scale = table.mean(axis=0), table.std(axis=0)
        self._scale[self._scale < 1e-9] = 1.0
        standard = (table - self._center) / self._scale
        self._offset = float(np.median(target))
        residual = target - self._offset
        errors = [leave_one_out(standard, residual, penalty) for penalty in PENALTIES]
        self.penalty = PENALTIES[int(np.argmin(errors))]
        self._weights = ridge(standard, residual, self.penalty)

    def _inputs(
        self, domain: Domain, population: Population
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        plans = compile_plans_fast(population, domain)
        base = self._timeline.predict_plans(domain, population, plans)
        return base, features(plans, population, domain, base)


def ridge(
    table: NDArray[np.float64], target: NDArray[np.float64], penalty: float
) -> NDArray[np.float64]:
    """Weights `(features,)` of the penalised least squares; zero at an infinite penalty."""
    if not np.isfinite(penalty):
        return np.zeros(table.shape[1])
    gram = table.T @ table + penalty * np.eye(table.shape[1])
    weights: NDArray[np.float64] = np.linalg.solve(gram, table.T @ target)
    return weights


def leave_one_out(table: NDArray[np.float64], target: NDArray[np.float64], penalty: float) -> float:
    """Mean squared error on each trial by the fit to the others (exact, from the hat matrix)."""
    if not np.isfinite(penalty):
        return float(np.mean(target**2))
    gram = table.T @ table + penalty * np.eye(table.shape[1])
    hat = table @ np.linalg.solve(gram, table.T)
    error = (target - hat @ target) / np.maximum(1.0 - np.diag(hat), 1e-6)
    return float(np.mean(error**2))
