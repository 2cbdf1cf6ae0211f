"""z_raw, z_pre and the timeline's terms of a whole strategy: sums over its messages."""

import numpy as np
from numpy.typing import NDArray

from autosync.codes import Channel, Op, Order
from autosync.domain import Domain
from autosync.plan import PlanTable
from autosync.population import Population
from autosync.simulator.analytic import analytic_seconds
from autosync.simulator.cost.compute_time import compute_seconds
from autosync.simulator.cost.message_classes import SERVER_OPERATIONS
from autosync.simulator.cost.network import network_of
from autosync.simulator.cost.network_arrays import Network
from autosync.simulator.extension_prediction import extension_features
from autosync.simulator.learned.features.feature_names import (
    COUNTED_CHANNELS,
    SIDES,
    SPENT,
    SUMMARY_COLUMNS,
)
from autosync.simulator.timeline.timeline_simulator import TimelineTimes
from autosync.simulator.timeline.what_if import WHAT_IFS, what_ifs

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

LEAST = 1e-3
"""Added to a ratio before its logarithm, since a sum may be 0."""


def summary_table(
    plans: PlanTable, population: Population, domain: Domain, times: TimelineTimes, base: F64
) -> F64:
    """A `(strategies, len(SUMMARY_COLUMNS))` array. base f64[n]: the timeline's seconds."""
    compute = max(domain.timing.forward_seconds + domain.timing.backward_seconds, 1e-9)
    network = network_of(domain.cluster, plans.teams)
    owner = np.repeat(np.arange(len(plans)), np.diff(plans.first))
    columns = _raw_columns(plans, population, domain, owner, compute)
    columns |= _predefined_columns(plans, network, owner, compute)
    columns |= _time_columns(plans, network, owner, times, base, compute)
    columns["log_base"] = np.log(base / compute)
    columns["log_analytic"] = np.log(analytic_seconds(plans, population, domain) / base)
    changed = what_ifs(plans, population, domain, times.seconds)
    columns |= {f"if_{name}": changed[:, k] for k, name in enumerate(WHAT_IFS)}
    return np.column_stack([columns[name] for name in SUMMARY_COLUMNS])


def _sums(owner: I64, values: NDArray[np.generic], n: int) -> F64:
    return np.bincount(owner, weights=values.astype(np.float64), minlength=n).astype(np.float64)


def _raw_columns(
    plans: PlanTable, population: Population, domain: Domain, owner: I64, compute: float
) -> dict[str, F64]:
    """Wire is seconds at the slowest NIC per second of compute; counts are logarithms."""
    n = len(plans)
    rate = float(domain.cluster.nic_bytes_per_second().min())
    wire = plans.wire_bytes / (rate * compute)
    columns: dict[str, F64] = {}
    for op in Op:
        chosen = plans.operation == op
        columns[f"messages_{op.name.lower()}"] = np.log1p(_sums(owner, chosen, n))
        columns[f"wire_{op.name.lower()}"] = _sums(owner, wire * chosen, n)
    counted_on = np.where(plans.channel == Channel.GATHER, Channel.VALUE, plans.channel)
    for channel in COUNTED_CHANNELS:
        on_channel = np.log1p(_sums(owner, counted_on == channel, n))
        columns[f"messages_on_{channel.name.lower()}"] = on_channel
    largest, smallest = np.zeros(n), np.full(n, np.inf)
    np.maximum.at(largest, owner, wire)
    np.minimum.at(smallest, owner, wire)
    late = plans.ready >= 0.8 * len(domain.graph.variables)
    layouts = compute_seconds(domain, population.layouts)
    columns |= {
        "largest_message": largest,
        "smallest_message": np.where(np.isfinite(smallest), smallest, 0.0),
        "server_imbalance": _server_imbalance(plans, owner, wire, n, domain.cluster.servers),
        "late_wire": _sums(owner, wire * late, n),
        "shards": np.log1p(np.diff(population.first).astype(np.float64)),
        "sliced": (population.slice_bytes > 0).astype(np.float64),
        "overlap": population.overlap.astype(np.float64),
        "log_compute": np.log(layouts[population.layout] / compute),
    }
    columns |= extension_features(population)
    for order in Order:
        columns[f"order_{order.name.lower()}"] = (population.order == order).astype(np.float64)
    return columns


def _predefined_columns(
    plans: PlanTable, costs: Network, owner: I64, compute: float
) -> dict[str, F64]:
    """Equation 2's and 3's terms: largest, mean and sum over the messages of each architecture."""
    n, kind = len(plans), costs.classes_of(plans)
    copies = costs.equation_seconds_per_byte[kind] + costs.copy_seconds_per_byte[kind]
    transfer = copies * plans.wire_bytes / compute
    startup = costs.message_seconds[kind] / compute
    served = np.isin(plans.operation, SERVER_OPERATIONS)
    columns: dict[str, F64] = {}
    for side, chosen in zip(SIDES, (served, ~served), strict=True):
        count = _sums(owner, chosen, n)
        most = np.zeros(n)
        np.maximum.at(most, owner, transfer * chosen)
        columns |= {
            f"{side}_most_transfer": most,
            f"{side}_mean_transfer": _sums(owner, transfer * chosen, n) / np.maximum(count, 1.0),
            f"{side}_sum_transfer": _sums(owner, transfer * chosen, n),
            f"{side}_sum_startup": _sums(owner, startup * chosen, n),
            f"{side}_log_messages": np.log1p(count),
        }
    return columns


def _time_columns(
    plans: PlanTable, costs: Network, owner: I64, times: TimelineTimes, base: F64, compute: float
) -> dict[str, F64]:
    """Sums over the messages. Seconds spent, over compute (logarithms) and over the iteration;
    seconds in flight and seconds until on the wire, over the iteration (logarithms)."""
    n, kind, wire = len(plans), costs.classes_of(plans), plans.wire_bytes.astype(np.float64)
    spent: dict[str, F64] = {
        "host": costs.host_seconds[kind] + costs.host_seconds_per_byte[kind] * wire,
        "startup": costs.startup_seconds[kind],
        "link": costs.seconds_per_byte[kind] * wire,
        "copy": costs.copy_seconds_per_byte[kind] * wire,
    }
    columns: dict[str, F64] = {}
    for name in SPENT:
        total = _sums(owner, spent[name], n)
        columns[f"log_{name}"] = np.log(total / compute + LEAST)
        columns[f"{name}_share"] = total / base
    columns["log_in_flight"] = np.log(_sums(owner, times.done - times.start, n) / base + LEAST)
    columns["log_queue"] = np.log(_sums(owner, times.flowing - times.start, n) / base + LEAST)
    return columns


def _server_imbalance(plans: PlanTable, owner: I64, wire: F64, n: int, servers: int) -> F64:
    """The busiest owner's wire seconds beyond the mean, per strategy."""
    pushes = np.isin(plans.operation, [op for op in Op if op.to_owner])
    cell = owner[pushes] * servers + plans.root[pushes].astype(np.int64)
    owned = np.bincount(cell, weights=wire[pushes], minlength=n * servers).reshape(n, servers)
    result: F64 = owned.max(axis=1) - owned.mean(axis=1)
    return result
