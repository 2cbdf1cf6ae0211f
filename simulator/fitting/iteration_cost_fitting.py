"""Fits a cluster's communication costs to measured iterations, through the timeline.

Single messages tell a startup; what many messages at once cost (the hosts' processors, which work
on one at a time) shows only in whole iterations. So strategies whose plans hold from one to
hundreds of messages of each kind are measured, and the costs are those with which the timeline
agrees best. The relative errors' absolute mean is minimised, which a bad trial hardly moves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from autosync.cancellation import check_cancelled
from autosync.cluster import Cluster, MessageCost, MessageKind
from autosync.codes import Op
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.population import Population
from autosync.simulator.cost.network import COST_KIND
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import simulate

F64 = NDArray[np.float64]

STARTUP_FACTOR = (0.1, 20.0)
"""How far a message's startup among others may stray from that of a message alone."""
HOST_SECONDS = (0.0, 5e-3)
BYTES_FACTOR = (0.0, 2.0)
"""Limit of copies and of host time, relative to the slowest NIC's seconds per byte."""

PRIOR = 2e-3
"""Weight of squared log startup factors: breaks ties where trials say nothing."""

TERMS = 4


@dataclass(frozen=True, slots=True)
class CostFit:
    """cluster: with fitted costs. residual: mean absolute relative error; before: with the costs
    it came with. measured, predicted f64[n]: seconds an iteration."""

    cluster: Cluster
    residual: float
    before: float
    measured: F64
    predicted: F64


def fit_costs(
    domain: Domain, population: Population, step_seconds: F64, max_iterations: int = 12
) -> CostFit:
    """Costs of every kind of message that the measured plans hold; others stay as they are.

    max_iterations: of Powell's method over all terms.

    Raises:
        InvalidInput: no strategy, or not one positive measurement for each.
    """
    _refuse_unmeasured(population, step_seconds)
    plans = compile_plans_fast(population, domain)
    kinds = sorted({COST_KIND[Op(operation)] for operation in np.unique(plans.operation)})
    byte_seconds = 1.0 / float(domain.cluster.nic_bytes_per_second().min())

    def predict(cluster: Cluster) -> F64:
        check_cancelled()
        return simulate(plans, population, replace(domain, cluster=cluster))

    def error(values: F64) -> float:
        cluster = with_terms(domain.cluster, kinds, values, byte_seconds)
        misses = np.abs(np.log(predict(cluster) / step_seconds))
        factors = np.log(values[::TERMS])
        return float(misses.mean() + PRIOR * np.sum(factors**2))

    begin = np.tile([1.0, 0.05, 1e-4, 0.02], len(kinds))
    bounds = [STARTUP_FACTOR, BYTES_FACTOR, HOST_SECONDS, BYTES_FACTOR] * len(kinds)
    found = minimize(
        error,
        begin,
        method="Powell",
        bounds=bounds,
        options={"maxiter": max_iterations, "ftol": 1e-3},
    )
    cluster = with_terms(domain.cluster, kinds, found.x, byte_seconds)
    predicted = predict(cluster)
    residual = _mean_error(predicted, step_seconds)
    costs = tuple(
        replace(cost, residual=residual) if cost.kind in kinds else cost for cost in cluster.costs
    )
    return CostFit(
        replace(cluster, costs=costs),
        residual,
        _mean_error(predict(domain.cluster), step_seconds),
        step_seconds,
        predicted,
    )


def _refuse_unmeasured(population: Population, step_seconds: F64) -> None:
    if len(population) != len(step_seconds) or not len(population) or not (step_seconds > 0).all():
        raise InvalidInput(
            f"{len(population)} strategies have {len(step_seconds)} measurements, or some that "
            "are not positive.",
            thing="step_seconds",
            value=len(step_seconds),
            remedy="Give one positive number of seconds for each strategy.",
        )


def with_terms(
    cluster: Cluster, kinds: Sequence[MessageKind], values: F64, byte_seconds: float
) -> Cluster:
    """The cluster with the costs of `kinds` changed.

    values `(4 * kinds,)`: factor of the startup; copies, over the slowest NIC's seconds per byte;
    host seconds; host seconds per byte, over the same.
    """
    changed = []
    for kind, (factor, copies, host, host_bytes) in zip(
        kinds, values.reshape(-1, TERMS).tolist(), strict=True
    ):
        cost = cluster.cost(kind)
        changed.append(
            MessageCost(
                kind,
                startup_seconds=cost.startup_seconds * factor,
                startup_seconds_per_worker=cost.startup_seconds_per_worker * factor,
                seconds_per_byte=copies * byte_seconds,
                host_seconds=host,
                host_seconds_per_byte=host_bytes * byte_seconds,
            )
        )
    others = tuple(cost for cost in cluster.costs if cost.kind not in kinds)
    return replace(cluster, costs=(*changed, *others))


def _mean_error(predicted: F64, measured: F64) -> float:
    return float(np.mean(np.abs(predicted / measured - 1.0)))
