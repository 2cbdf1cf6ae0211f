"""What a strategy looks like to a linear model: sums over its messages, in units of compute.

Names do not matter: swapping identical hosts or renaming groups leaves every feature as it was.
"""

import numpy as np
from numpy.typing import NDArray

from autosync.codes import Channel, Op, Order
from autosync.domain import Domain
from autosync.plan import PlanTable
from autosync.population import Population

FEATURES = (
    "log_base",
    *(f"messages_{op.name.lower()}" for op in Op),
    *(f"wire_{op.name.lower()}" for op in Op),
    *(f"messages_on_{channel.name.lower()}" for channel in Channel),
    "largest_message",
    "smallest_message",
    "server_imbalance",
    "late_wire",
    "shards",
    "sliced",
    *(f"order_{order.name.lower()}" for order in Order),
    "overlap",
)
VERSION = 1
"""Goes up whenever the meaning of a feature changes; a model fitted for another is refused."""


def features(
    plans: PlanTable, population: Population, domain: Domain, base_seconds: NDArray[np.float64]
) -> NDArray[np.float64]:
    """A `(strategies, len(FEATURES))` array.

    base_seconds: `(strategies,)` predictions of a simulator that needs no training.
    Wire features are seconds at the slowest NIC per second of compute; counts are logarithms.
    """
    n = len(plans)
    compute = max(domain.timing.forward_seconds + domain.timing.backward_seconds, 1e-9)
    rate = float(domain.cluster.nic_bytes_per_second().min())
    owner = np.repeat(np.arange(n), np.diff(plans.first))
    wire = plans.wire_bytes / (rate * compute)
    by_operation = [plans.operation == operation for operation in Op]
    columns = [
        np.log(base_seconds / compute),
        *(np.log1p(_sums(owner, chosen, n)) for chosen in by_operation),
        *(_sums(owner, wire * chosen, n) for chosen in by_operation),
        *(np.log1p(_sums(owner, plans.channel == channel, n)) for channel in Channel),
    ]
    largest, smallest = np.zeros(n), np.full(n, np.inf)
    np.maximum.at(largest, owner, wire)
    np.minimum.at(smallest, owner, wire)
    late = plans.ready >= 0.8 * len(domain.graph.variables)
    columns += [
        largest,
        np.where(np.isfinite(smallest), smallest, 0.0),
        _server_imbalance(plans, owner, wire, n, domain.cluster.servers),
        _sums(owner, wire * late, n),
        np.log1p(np.diff(population.first).astype(np.float64)),
        (population.slice_bytes > 0).astype(np.float64),
    ]
    columns += [(population.order == order).astype(np.float64) for order in Order]
    columns.append(population.overlap.astype(np.float64))
    return np.column_stack(columns)


def _sums(owner: NDArray[np.int64], values: NDArray[np.generic], n: int) -> NDArray[np.float64]:
    return np.bincount(owner, weights=values.astype(np.float64), minlength=n)


def _server_imbalance(
    plans: PlanTable,
    owner: NDArray[np.int64],
    wire: NDArray[np.float64],
    n: int,
    servers: int,
) -> NDArray[np.float64]:
    """The busiest owner's wire seconds beyond the mean, per strategy."""
    pushes = np.isin(plans.operation, (Op.PUSH, Op.SPARSE_PUSH))
    cell = owner[pushes] * servers + plans.root[pushes].astype(np.int64)
    load = np.bincount(cell, weights=wire[pushes], minlength=n * servers).reshape(n, servers)
    result: NDArray[np.float64] = load.max(axis=1) - load.mean(axis=1)
    return result
