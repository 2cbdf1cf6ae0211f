"""The costs of a cluster that whole iterations can identify, as a vector of numbers, and their fit.

Every number has a prior: its value on the cluster as it is, a standard deviation, and what is
physically possible. Vectors count in these standard deviations from there, so a fit sees numbers of
about one, whatever their units.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosync.cluster import Cluster, MessageCost, MessageKind
from autosync.codes import Op
from autosync.plan.plan_table import PlanTable
from autosync.population import Population
from autosync.simulator.backends import backend_of
from autosync.simulator.cost.message_classes import COST_KIND
from autosync.simulator.timeline.sharded_timeline import sent_in_host_memory

F64 = NDArray[np.float64]

STARTUP_SECONDS = (0.0, 0.1)
HOST_SECONDS = (0.0, 5e-3)
"""Of a message, however small. The longest that were measured, between eight ranks on two cores,
are 10 ms of startup and 3 ms of the hosts' processors."""
BYTES_FACTOR = (0.0, 2.0)
"""Copies and sums, over the slowest NIC's seconds per byte: what works on bytes longer than twice
the link carries them would be taken for the link."""
OVERLAP_SLOWDOWN = (0.0, 1.0)
"""A core that serves messages as long as compute halves it."""
LINK_SECONDS_PER_SEND = (0.0, 1e-4)
"""Some ten packets without payload, at 0.1 Gbit/s."""


@dataclass(frozen=True, slots=True)
class PriorStd:
    """Standard deviations of what is known before whole iterations are measured.

    startup, host: shares of a kind's own value. least_seconds: of both, where that is small.
    bytes_factor: of copies and of host seconds per byte, over the slowest NIC's seconds per byte.
    overlap_slowdown, link_seconds_per_send: see `Cluster`.
    """

    startup: float
    host: float
    least_seconds: float
    bytes_factor: float
    overlap_slowdown: float
    link_seconds_per_send: float


@dataclass(frozen=True, slots=True)
class CostParameters:
    """n numbers: four of each kind (startup among all ranks, copies, host seconds, host seconds per
    byte), then the cluster's `overlap_slowdown` and `link_seconds_per_send`.

    before, deviation, low, high f64[n]: in the numbers' own units.
    """

    cluster: Cluster
    kinds: tuple[MessageKind, ...]
    before: F64
    deviation: F64
    low: F64
    high: F64

    def bounds(self) -> tuple[F64, F64]:
        """The least and greatest vectors, `(n,)` each; 0 lies between them, and is both where
        there is no doubt."""
        unit = np.where(self.deviation > 0, self.deviation, np.inf)
        return (self.low - self.before) / unit, (self.high - self.before) / unit

    def cluster_with(self, vector: F64) -> Cluster:
        """The cluster with these costs. vector `(n,)`: in standard deviations."""
        values = np.clip(self.before + vector * self.deviation, self.low, self.high)
        rows = values[:-2].reshape(-1, 4).tolist()
        fitted = [
            _with_values(self.cluster, kind, *row)
            for kind, row in zip(self.kinds, rows, strict=True)
        ]
        others = [cost for cost in self.cluster.costs if cost.kind not in self.kinds]
        return replace(
            self.cluster,
            costs=(*fitted, *others),
            overlap_slowdown=float(values[-2]),
            link_seconds_per_send=float(values[-1]),
        )


def kinds_of_messages(
    plans: PlanTable, population: Population, cluster: Cluster
) -> tuple[MessageKind, ...]:
    """Whose costs the messages of the population's plans pay, by name."""
    operation = plans.operation
    if backend_of(cluster).starts_on_host:
        sharded = np.repeat(population.engine > 0, np.diff(plans.first))
        operation = np.where(sharded, sent_in_host_memory(operation), operation)
    return tuple(sorted({COST_KIND[Op(each)] for each in np.unique(operation)}))


def cost_parameters(
    cluster: Cluster, kinds: Sequence[MessageKind], std: PriorStd
) -> CostParameters:
    """Of these kinds of messages, as the cluster has them and with this prior about them."""
    byte_seconds = 1.0 / float(cluster.nic_bytes_per_second().min())
    byte_std = std.bytes_factor * byte_seconds
    byte_limits = BYTES_FACTOR[0] * byte_seconds, BYTES_FACTOR[1] * byte_seconds
    rows = []
    for kind in kinds:
        cost = cluster.cost(kind)
        startup, host = _startup_seconds(cluster, cost), cost.host_seconds
        rows += [
            (startup, max(std.startup * startup, std.least_seconds), *STARTUP_SECONDS),
            (cost.seconds_per_byte, byte_std, *byte_limits),
            (host, max(std.host * host, std.least_seconds), *HOST_SECONDS),
            (cost.host_seconds_per_byte, byte_std, *byte_limits),
        ]
    send = cluster.link_seconds_per_send
    rows += [
        (cluster.compute_slowdown, std.overlap_slowdown, *OVERLAP_SLOWDOWN),
        (send, std.link_seconds_per_send, *LINK_SECONDS_PER_SEND),
    ]
    before, deviation, low, high = np.array(rows).T
    low, high = np.minimum(low, before), np.maximum(high, before)
    return CostParameters(cluster, tuple(kinds), before, deviation, low, high)


def _startup_seconds(cluster: Cluster, cost: MessageCost) -> float:
    return cost.startup_seconds + cost.startup_seconds_per_worker * cluster.world_size


def _with_values(
    cluster: Cluster, kind: MessageKind, startup: float, copies: float, host: float, by_byte: float
) -> MessageCost:
    """The startup keeps the share of it that grows with workers."""
    cost = cluster.cost(kind)
    among_all = _startup_seconds(cluster, cost)
    of_worker = cost.startup_seconds_per_worker / among_all if among_all > 0 else 0.0
    return MessageCost(
        kind,
        startup_seconds=max(0.0, startup * (1.0 - of_worker * cluster.world_size)),  # it rounds
        startup_seconds_per_worker=startup * of_worker,
        seconds_per_byte=copies,
        host_seconds=host,
        host_seconds_per_byte=by_byte,
        residual=cost.residual,
    )


DEGREES_OF_FREEDOM = 3.0
"""Of the distribution of errors; normal ones have infinitely many."""
DIFFERENCE_STEP = 0.15
"""Of derivatives, in standard deviations of what is known before."""
SMALLEST_GAIN = 1e-5
"""Relative: the fit ends where a step gains less."""
INSIDE = 1e-3
"""How far from its bounds, as a share of what lies between them, each number begins: the interior
method does not leave a bound that it begins on."""


def fit_regularized(
    predict: Callable[[F64], F64],
    target: F64,
    noise: float,
    low: F64,
    high: F64,
    max_iterations: int,
) -> F64:
    """The vector `(n,)` with the least sum of squares, its own among them: 0 is the prior's mean, 1
    a standard deviation from there. By scipy's trust-region methods.

    Iterations are piecewise smooth in the costs, so derivatives are differences over a step that is
    long beside the pieces. Errors count as Student's t distribution has them: a trial that went
    wrong, or a strategy that no costs explain, pulls less the further off it is.

    predict: from a vector to `(m,)`, compared with target. noise: the standard deviation of both
    together. low, high `(n,)`: bounds, with 0 between them.
    """
    from scipy.optimize import least_squares  # loads for long; rankings fit nothing

    free = np.flatnonzero(high > low)
    vector = np.zeros(len(low))
    if not len(free):
        return vector
    low, high = low[free], high[free]

    def residuals(of_free: F64) -> F64:
        vector[free] = of_free
        errors = (predict(vector) - target) / noise
        heavy = np.sqrt(DEGREES_OF_FREEDOM * np.log1p(errors**2 / DEGREES_OF_FREEDOM))
        return np.concatenate([np.copysign(heavy, errors), of_free])

    def slopes(of_free: F64) -> F64:
        """`(m + n, n)`: of the residuals by each number, in the direction in which there is
        room."""
        here = residuals(of_free)
        found = np.empty((len(here), len(of_free)))
        for place in range(len(of_free)):
            up = high[place] - of_free[place] >= of_free[place] - low[place]
            there = of_free.copy()
            there[place] += DIFFERENCE_STEP if up else -DIFFERENCE_STEP
            there = np.clip(there, low, high)
            found[:, place] = (residuals(there) - here) / (there[place] - of_free[place])
        return found

    inside = INSIDE * (high - low)
    begin = np.clip(0.0, low + inside, high - inside)
    for method in ("trf", "dogbox"):  # the first moves along bounds, the second ends on them
        fit = least_squares(
            residuals,
            begin,
            jac=slopes,
            bounds=(low, high),
            method=method,
            ftol=SMALLEST_GAIN,
            max_nfev=max_iterations,
        )
        begin = fit.x
    vector[free] = begin
    return vector
