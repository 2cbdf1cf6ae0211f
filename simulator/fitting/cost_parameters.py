"""The costs of a cluster that measurements of whole iterations can tell, as a vector of numbers.

Every number has what is known of it before: its value on the cluster as it is, by how much that may
be wrong (a standard deviation), and what is physically possible. Vectors are counted in these
standard deviations from there, so a fit sees numbers of about one, whatever their units.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosync.cluster import Cluster, MessageCost, MessageKind
from autosync.codes import Op
from autosync.plan.plan_table import PlanTable
from autosync.simulator.cost.network import COST_KIND

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
class Doubt:
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


def kinds_of_messages(plans: PlanTable) -> tuple[MessageKind, ...]:
    """Whose costs the messages of the plans pay, by name."""
    return tuple(sorted({COST_KIND[Op(operation)] for operation in np.unique(plans.operation)}))


def cost_parameters(cluster: Cluster, kinds: Sequence[MessageKind], doubt: Doubt) -> CostParameters:
    """Of these kinds of messages, as the cluster has them and with this doubt about them."""
    byte_seconds = _byte_seconds(cluster)
    before, deviation, low, high = [], [], [], []
    for kind in kinds:
        cost = cluster.cost(kind)
        startup, host = _startup_seconds(cluster, cost), cost.host_seconds
        before += [startup, cost.seconds_per_byte, host, cost.host_seconds_per_byte]
        deviation += [
            max(doubt.startup * startup, doubt.least_seconds),
            doubt.bytes_factor * byte_seconds,
            max(doubt.host * host, doubt.least_seconds),
            doubt.bytes_factor * byte_seconds,
        ]
        for limits, unit in (
            (STARTUP_SECONDS, 1.0),
            (BYTES_FACTOR, byte_seconds),
            (HOST_SECONDS, 1.0),
            (BYTES_FACTOR, byte_seconds),
        ):
            low.append(limits[0] * unit)
            high.append(limits[1] * unit)
    before += [cluster.compute_slowdown, cluster.link_seconds_per_send]
    deviation += [doubt.overlap_slowdown, doubt.link_seconds_per_send]
    low += [OVERLAP_SLOWDOWN[0], LINK_SECONDS_PER_SEND[0]]
    high += [OVERLAP_SLOWDOWN[1], LINK_SECONDS_PER_SEND[1]]
    known = np.array(before)
    return CostParameters(
        cluster,
        tuple(kinds),
        known,
        np.array(deviation),
        np.minimum(low, known),
        np.maximum(high, known),
    )


def _byte_seconds(cluster: Cluster) -> float:
    return 1.0 / float(cluster.nic_bytes_per_second().min())


def _startup_seconds(cluster: Cluster, cost: MessageCost) -> float:
    return cost.startup_seconds + cost.startup_seconds_per_worker * cluster.world_size


def _with_values(
    cluster: Cluster,
    kind: MessageKind,
    startup: float,
    copies: float,
    host: float,
    host_bytes: float,
) -> MessageCost:
    """The startup keeps the share of it that grows with workers."""
    cost = cluster.cost(kind)
    among_all = _startup_seconds(cluster, cost)
    of_worker = cost.startup_seconds_per_worker / among_all if among_all > 0 else 0.0
    return MessageCost(
        kind,
        startup_seconds=startup * (1.0 - of_worker * cluster.world_size),
        startup_seconds_per_worker=startup * of_worker,
        seconds_per_byte=copies,
        host_seconds=host,
        host_seconds_per_byte=host_bytes,
        residual=cost.residual,
    )
