"""What a strategy looks like to the models: sums over its messages, and its portions.

Everything is relative (to compute, to the model's bytes, to the mean link), and nothing is a name:
swapping identical hosts or renaming groups leaves every feature as it was.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autosync.codes import Channel, Op, Order
from autosync.domain import Domain
from autosync.plan import PlanTable
from autosync.population import Population
from autosync.simulator.analytic import analytic_seconds
from autosync.simulator.compute_time import compute_seconds
from autosync.simulator.cost.network import SERVER_OPERATIONS, network_of
from autosync.simulator.learned.features.domain_descriptor import (describe_domain)
from autosync.simulator.learned.features.shard_features import (PRE, RAW, TIMES, ShardFeatures, features_of_shards)
from autosync.simulator.learned.features.what_if import (WHAT_IFS, MessageTimes, message_times, what_ifs)
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

FEATURE_VERSION = 4
"""Goes up whenever the meaning of a feature changes; a checkpoint of another is refused."""

LEAST = 1e-3
"""Ratio below which the logarithm of a sum tells no more."""

FeaturePart = Literal["raw", "predefined", "timeline"]
PARTS: tuple[FeaturePart, ...] = ("raw", "predefined", "timeline")

SIDES = ("server", "collective")
SUMMARY_PRE = tuple(
    f"{side}_{name}"
    for side in SIDES
    for name in ("most_transfer", "mean_transfer", "sum_transfer", "sum_startup", "log_messages")
)
"""z_pre of the whole strategy (supplement, sections 2 and 3), per architecture."""
SUMMARY_RAW = (
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
    "staleness",
    "log_compute",
)
SPENT = ("host", "startup", "link", "copy")
"""What messages spend seconds on; summed, they say what a strategy's time is made of."""
SUMMARY_TIMES = (
    "log_base",
    "log_analytic",
    *(f"log_{name}" for name in SPENT),
    *(f"{name}_share" for name in SPENT),
    "log_air",
    "log_queue",
    *(f"if_{name}" for name in WHAT_IFS),
)
SUMMARY_COLUMNS = (*SUMMARY_RAW, *SUMMARY_PRE, *SUMMARY_TIMES)
SHARD_COLUMNS = (*RAW, *PRE, *TIMES)

_PARTS_OF: dict[FeaturePart, tuple[tuple[str, ...], ...]] = {
    "raw": (SUMMARY_RAW, RAW),
    "predefined": (SUMMARY_PRE, PRE),
    "timeline": (SUMMARY_TIMES, TIMES),
}


@dataclass(frozen=True, slots=True)
class StrategyFeatures:
    """n strategies of one domain.

    base_seconds f64[n]: the timeline's prediction. summary f64[n, len(SUMMARY)]: sums over the
    messages. partitions f64[n]: shards (the ranking loss penalises more of them).
    shards: per variable, or None where only sums were asked for.
    descriptor f64[len(DESCRIPTOR)]: of the domain.
    """

    base_seconds: F64
    summary: F64
    partitions: F64
    shards: ShardFeatures | None
    descriptor: F64

    def __len__(self) -> int:
        return len(self.base_seconds)

    def take(self, indices: I64) -> "StrategyFeatures":
        """The strategies of these indices, in their order."""
        part = self.shards
        if part is not None:
            counts = np.diff(part.first)[indices]
            first = np.concatenate(([0], np.cumsum(counts)))
            rows = np.arange(first[-1]) + np.repeat(part.first[indices] - first[:-1], counts)
            part = ShardFeatures(first, part.variable[rows], part.values[rows])
        return StrategyFeatures(
            self.base_seconds[indices],
            self.summary[indices],
            self.partitions[indices],
            part,
            self.descriptor,
        )


def features_of_plans(
    plans: PlanTable, population: Population, domain: Domain, with_shards: bool = True
) -> StrategyFeatures:
    """The features of compiled plans.

    with_portions: also per variable, for the LSTM and the GAT; the linear model needs sums only.
    """
    times = message_times(plans, population, domain)
    base = TimelineSimulator().predict_plans(domain, population, plans)
    compute = max(domain.timing.forward_seconds + domain.timing.backward_seconds, 1e-9)
    columns = _raw_columns(plans, population, domain, compute)
    columns |= _predefined_columns(plans, domain, compute)
    columns |= _time_columns(plans, domain, times, base, compute)
    columns["log_base"] = np.log(base / compute)
    columns["log_analytic"] = np.log(analytic_seconds(plans, population, domain) / base)
    changed = what_ifs(plans, population, domain, times.seconds)
    columns |= {f"if_{name}": changed[:, k] for k, name in enumerate(WHAT_IFS)}
    return StrategyFeatures(
        base_seconds=base,
        summary=np.column_stack([columns[name] for name in SUMMARY_COLUMNS]),
        partitions=np.diff(population.first).astype(np.float64),
        shards=features_of_shards(plans, population, domain, times) if with_shards else None,
        descriptor=describe_domain(domain),
    )


def summary_columns(parts: tuple[FeaturePart, ...]) -> I64:
    """Indices of SUMMARY that belong to these parts."""
    return _columns(SUMMARY_COLUMNS, [_PARTS_OF[part][0] for part in parts])


def shared_columns(parts: tuple[FeaturePart, ...]) -> NDArray[np.bool_]:
    """Which of `summary_columns(parts)` mean the same in every domain, and are 0 alike: the
    what-ifs, and the schedule's switches."""
    shared = {f"if_{name}" for name in WHAT_IFS} | {"sliced", "overlap", "staleness"}
    shared |= {f"order_{order.name.lower()}" for order in Order}
    return np.array([SUMMARY_COLUMNS[column] in shared for column in summary_columns(parts)])


def shard_columns(parts: tuple[FeaturePart, ...]) -> I64:
    """Indices of PORTION that belong to these parts."""
    return _columns(SHARD_COLUMNS, [_PARTS_OF[part][1] for part in parts])


def _columns(names: tuple[str, ...], groups: list[tuple[str, ...]]) -> I64:
    wanted = {name for group in groups for name in group}
    return np.array([i for i, name in enumerate(names) if name in wanted], dtype=np.int64)


def _sums(owner: I64, values: NDArray[np.generic], n: int) -> F64:
    return np.bincount(owner, weights=values.astype(np.float64), minlength=n).astype(np.float64)


def _raw_columns(
    plans: PlanTable, population: Population, domain: Domain, compute: float
) -> dict[str, F64]:
    """Wire is seconds at the slowest NIC per second of compute; counts are logarithms."""
    n = len(plans)
    rate = float(domain.cluster.nic_bytes_per_second().min())
    owner = np.repeat(np.arange(n), np.diff(plans.first))
    wire = plans.wire_bytes / (rate * compute)
    columns: dict[str, F64] = {}
    for op in Op:
        chosen = plans.operation == op
        columns[f"messages_{op.name.lower()}"] = np.log1p(_sums(owner, chosen, n))
        columns[f"wire_{op.name.lower()}"] = _sums(owner, wire * chosen, n)
    for channel in Channel:
        on_channel = np.log1p(_sums(owner, plans.channel == channel, n))
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
        "staleness": population.staleness.astype(np.float64),
        "log_compute": np.log(layouts[population.layout] / compute),
    }
    for order in Order:
        columns[f"order_{order.name.lower()}"] = (population.order == order).astype(np.float64)
    return columns


def _predefined_columns(plans: PlanTable, domain: Domain, compute: float) -> dict[str, F64]:
    """Equation 2's and 3's terms: largest, mean and sum over the messages of each architecture."""
    n = len(plans)
    costs = network_of(domain.cluster, plans.teams)
    kind = costs.kind[plans.operation, plans.ranks, plans.root.astype(np.int64) + 1]
    copies = costs.equation_seconds_per_byte[kind] + costs.copy_seconds_per_byte[kind]
    transfer = copies * plans.wire_bytes / compute
    startup = costs.message_seconds[kind] / compute
    owner = np.repeat(np.arange(n), np.diff(plans.first))
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
    plans: PlanTable, domain: Domain, times: MessageTimes, base: F64, compute: float
) -> dict[str, F64]:
    """Seconds that messages spend in all, over compute (logarithms) and over the iteration; in
    the air and until they are on the wire, over the iteration."""
    n = len(plans)
    costs = network_of(domain.cluster, plans.teams)
    kind = costs.kind[plans.operation, plans.ranks, plans.root.astype(np.int64) + 1]
    wire = plans.wire_bytes.astype(np.float64)
    owner = np.repeat(np.arange(n), np.diff(plans.first))
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
    columns["log_air"] = np.log(_sums(owner, times.done - times.start, n) / base + LEAST)
    columns["log_queue"] = np.log(_sums(owner, times.flowing - times.start, n) / base + LEAST)
    return columns


def _server_imbalance(plans: PlanTable, owner: I64, wire: F64, n: int, servers: int) -> F64:
    """The busiest owner's wire seconds beyond the mean, per strategy."""
    pushes = np.isin(plans.operation, [op for op in Op if op.to_owner])
    cell = owner[pushes] * servers + plans.root[pushes].astype(np.int64)
    load = np.bincount(cell, weights=wire[pushes], minlength=n * servers).reshape(n, servers)
    result: F64 = load.max(axis=1) - load.mean(axis=1)
    return result
