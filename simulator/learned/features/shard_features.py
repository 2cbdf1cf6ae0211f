"""z_raw and z_pre of a strategy's shard sets, for the models that read variable by variable.

A shard set is all shards of one variable with the same synchronizer in the same group, which travel
in one message: a row of the features. BERT-large has 1,300 shards but 460 shard sets a sampled
strategy; the order of the shards of a set along the cut does not matter. Hosts and groups appear
by what they are (bandwidth, bytes they carry, size), never by their number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.codes import ENCODINGS, POWERSGD, Method, Order
from autosync.domain import Domain
from autosync.plan import PlanTable
from autosync.plan.compiler_arrays import encoding_code
from autosync.population import Population
from autosync.simulator.cost.compute_time import compute_factors
from autosync.simulator.cost.network import network_of
from autosync.simulator.extension_prediction import extension_features
from autosync.simulator.learned.features.feature_names import DIMS, DTYPES, SHARD_COLUMNS
from autosync.simulator.timeline.timeline_simulator import TimelineTimes

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Columns = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class ShardTraffic:
    """Of B buckets and of N shards (rows of the population); seconds unless stated.

    bucket_owner i64[B]: its strategy. bucket_root i64[B]: the server, or -1.
    bucket_transfer, bucket_startup, bucket_link f64[B]: equation 2's or 3's network term over all
        its messages; their startups; the time they hold their slowest link.
    transfer, startup, link f64[N]: the shard's part of them, by its share of the bytes.
    buckets f64[N]: how many it travels in. ready, start, done f64[N]: when the last gradient of
        its message exists, its first message starts, its last has arrived, from the start of
        backward. issue_place f64[N]: its first message's place in the order of issue, in [0, 1).
    """

    bucket_owner: I64
    bucket_root: I64
    bucket_transfer: F64
    bucket_startup: F64
    bucket_link: F64
    transfer: F64
    startup: F64
    link: F64
    buckets: F64
    ready: F64
    start: F64
    done: F64
    issue_place: F64


def traffic_of(
    plans: PlanTable, population: Population, domain: Domain, times: TimelineTimes
) -> ShardTraffic:
    buckets, rows = len(plans.bucket_first) - 1, population.rows
    costs = network_of(domain.cluster, plans.teams)
    kind = costs.classes_of(plans)
    wire = plans.wire_bytes.astype(np.float64)
    copies = costs.copy_seconds_per_byte[kind]
    transfer = (costs.equation_seconds_per_byte[kind] + copies) * wire
    strategy = np.repeat(np.arange(len(plans)), np.diff(plans.first))
    place = (np.arange(plans.messages) - plans.first[strategy]) / np.diff(plans.first)[strategy]
    ready = domain.timing.ready_seconds[np.maximum(plans.ready, 0)] * (plans.ready >= 0)

    def of_buckets(values: F64) -> F64:
        return np.bincount(plans.bucket, weights=values, minlength=buckets).astype(np.float64)

    owner, root = np.zeros(buckets, dtype=np.int64), np.full(buckets, -1, dtype=np.int64)
    owner[plans.bucket] = strategy
    np.maximum.at(root, plans.bucket, plans.root.astype(np.int64))
    bucket_transfer = of_buckets(transfer)
    bucket_startup = of_buckets(costs.message_seconds[kind])
    bucket_link = of_buckets(costs.seconds_per_byte[kind] * wire)

    piece_bucket = np.repeat(np.arange(buckets), np.diff(plans.bucket_first))
    piece_row = population.first[owner[piece_bucket]] + plans.piece_row
    elements = (plans.piece_stop - plans.piece_start).astype(np.float64)
    share = elements / np.bincount(piece_bucket, weights=elements, minlength=buckets)[piece_bucket]

    def of_rows(values: F64) -> F64:
        return np.bincount(piece_row, weights=share * values[piece_bucket], minlength=rows).astype(
            np.float64
        )

    def extreme(values: F64, ufunc: np.ufunc, empty: float) -> F64:
        by_bucket, by_row = np.full(buckets, empty), np.full(rows, empty)
        ufunc.at(by_bucket, plans.bucket, values)
        ufunc.at(by_row, piece_row, by_bucket[piece_bucket])
        return by_row

    return ShardTraffic(
        bucket_owner=owner,
        bucket_root=root,
        bucket_transfer=bucket_transfer,
        bucket_startup=bucket_startup,
        bucket_link=bucket_link,
        transfer=of_rows(bucket_transfer),
        startup=of_rows(bucket_startup),
        link=of_rows(bucket_link),
        buckets=np.bincount(piece_row, minlength=rows).astype(np.float64),
        ready=extreme(ready, np.maximum, 0.0),
        start=extreme(times.start, np.minimum, np.inf),
        done=extreme(times.done, np.maximum, 0.0),
        issue_place=extreme(place, np.minimum, np.inf),
    )


@dataclass(frozen=True, slots=True)
class ShardFeatures:
    """P shard sets of n strategies.

    first i64[n + 1]: strategy i has the rows first[i]:first[i + 1], variable by variable in the
        graph's order. variable i64[P]. values f32[P, len(SHARD_COLUMNS)].
    """

    first: I64
    variable: I64
    values: NDArray[np.float32]

    def take(self, indices: I64) -> "ShardFeatures":
        """The strategies of these indices, in their order."""
        counts = np.diff(self.first)[indices]
        first = np.concatenate(([0], np.cumsum(counts)))
        rows = np.arange(first[-1]) + np.repeat(self.first[indices] - first[:-1], counts)
        return ShardFeatures(first, self.variable[rows], self.values[rows])


def joined_shards(parts: Sequence[ShardFeatures]) -> ShardFeatures:
    """Strategy after strategy."""
    counts = np.concatenate([np.diff(part.first) for part in parts])
    return ShardFeatures(
        np.concatenate(([0], np.cumsum(counts))),
        np.concatenate([part.variable for part in parts]),
        np.concatenate([part.values for part in parts]),
    )


def features_of_shards(
    plans: PlanTable, population: Population, domain: Domain, times: TimelineTimes
) -> ShardFeatures:
    """The shard sets of compiled plans and their features."""
    strategy = np.repeat(np.arange(len(population)), np.diff(population.first))
    lead, member = _grouping(population, strategy)
    travel = traffic_of(plans, population, domain, times)
    shards = _ShardFacts(population, domain, strategy, travel)
    columns = _variable_columns(domain, population.variable[lead].astype(np.int64))
    columns |= _cut_columns(shards, lead, member)
    columns |= _synchronizer_columns(shards, lead)
    columns |= _group_columns(shards, lead, member)
    columns |= _schedule_columns(shards, lead, member)
    columns |= _time_columns(shards, lead, member)
    values = np.empty((len(lead), len(SHARD_COLUMNS)), dtype=np.float32)
    for k, name in enumerate(SHARD_COLUMNS):
        values[:, k] = columns[name]
    first = np.searchsorted(strategy[lead], np.arange(len(population) + 1))
    return ShardFeatures(first.astype(np.int64), population.variable[lead].astype(np.int64), values)


def _grouping(population: Population, strategy: I64) -> tuple[I64, I64]:
    """Each shard set's first shard, i64[P], and each shard's set, i64[N]; by first appearance."""
    key = strategy
    for values, size in (
        (population.variable, population.axis.shape[1]),
        (population.method, len(Method)),
        (population.option, len(population.options)),
        (population.server.astype(np.int64) + 1, int(population.server.max(initial=-1)) + 2),
        (population.group, int(population.group.max(initial=0)) + 1),
    ):
        key = key * size + values
    _, lead, member = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(lead)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return lead[order], place[member]


class _ShardFacts:
    """Of each of N shards, what several columns need; `fraction` is of its variable."""

    def __init__(
        self, population: Population, domain: Domain, strategy: I64, travel: ShardTraffic
    ) -> None:
        table = domain.variables
        self.population, self.domain, self.strategy, self.travel = (
            population,
            domain,
            strategy,
            travel,
        )
        self.variable = population.variable.astype(np.int64)
        axis = population.axis[strategy, self.variable].astype(np.int64)
        dims = table.dims[self.variable, np.maximum(axis, 0)]
        whole = np.where(axis < 0, table.elements[self.variable], dims)
        self.fraction = population.length / whole
        self.size_bytes = self.fraction * table.size_bytes[self.variable]
        self.axis = axis
        self.total_bytes = float(domain.graph.size_bytes)
        groups = int(population.group.max(initial=0)) + 1
        self.group = strategy * groups + population.group
        self.groups = len(population) * groups
        timing = domain.timing
        self.compute = max(timing.forward_seconds + timing.backward_seconds, 1e-9)

    def by_group(self, values: F64) -> F64:
        """For each shard the sum over its group, `(N,)`."""
        sums = np.bincount(self.group, weights=values, minlength=self.groups)
        return np.asarray(sums[self.group], dtype=np.float64)

    def group_extreme(self, values: F64, ufunc: np.ufunc, empty: float) -> F64:
        found = np.full(self.groups, empty)
        ufunc.at(found, self.group, values)
        result: F64 = found[self.group]
        return result


def _sum(member: I64, values: F64) -> F64:
    return np.bincount(member, weights=values).astype(np.float64)


def _most(member: I64, values: F64, count: int) -> F64:
    most = np.full(count, -np.inf)
    np.maximum.at(most, member, values)
    return most


def _size(size_bytes: F64) -> F64:
    """Bytes on a logarithmic scale: 1 KB is 0, 1 MB is 1, 1 GB is 2."""
    return np.log2(np.maximum(size_bytes, 1.0) / 1024.0) / 10.0


def _variable_columns(domain: Domain, variable: I64) -> Columns:
    table, timing, graph = domain.variables, domain.timing, domain.graph
    rows = np.maximum(table.dims[:, 0], 1)
    factors = table.factor_rows * (rows + table.elements // rows)
    dtypes = np.array([DTYPES.index(v.dtype) for v in graph.variables])
    ready = timing.ready_seconds[table.ready] / max(timing.backward_seconds, 1e-9)
    use = timing.forward_start[table.first_use] / max(timing.forward_seconds, 1e-9)
    columns: Columns = {
        "variable_size": _size(table.size_bytes.astype(np.float64)),
        "variable_fraction": table.size_bytes / graph.size_bytes,
        "dimensions": table.rank / DIMS,
        "sparse": table.sparse,
        "touched_fraction": table.touched_rows / rows,
        "factor_fraction": np.minimum(factors / table.elements, 4.0),
        "ready_place": ready,
        "first_use_place": use,
    }
    for k in range(DIMS):
        columns[f"dimension_{k}"] = np.log2(table.dims[:, k]) / 10.0
    for code, name in enumerate(DTYPES):
        columns[f"dtype_{name}"] = dtypes == code
    return {name: values[variable] for name, values in columns.items()}


def _cut_columns(shards: _ShardFacts, lead: I64, member: I64) -> Columns:
    size_bytes = _sum(member, shards.size_bytes)
    axis, rank = shards.axis[lead], shards.domain.variables.rank[shards.variable[lead]]
    return {
        "set_size": _size(size_bytes),
        "set_fraction": size_bytes / shards.total_bytes,
        "shards": np.log2(np.bincount(member)),
        "shard_squares": _sum(member, shards.fraction**2),
        "largest_shard": _most(member, shards.fraction, len(lead)),
        "flat": axis < 0,
        "axis_place": np.where(axis < 0, 0.0, (axis + 1) / np.maximum(rank, 1)),
    }


def _synchronizer_columns(shards: _ShardFacts, lead: I64) -> Columns:
    population = shards.population
    options = population.options
    method = population.method[lead]
    option = population.option[lead]
    code = np.array([encoding_code(choice) for choice in options])[option]

    def chosen(values: list[bool]) -> NDArray[np.bool_]:
        result: NDArray[np.bool_] = np.array(values, dtype=np.bool_)[option]
        return result

    hierarchical = [o.hierarchical or o.algorithm == "hierarchical" for o in options]
    columns: Columns = {
        "tree": chosen([o.algorithm == "tree" for o in options]),
        "hierarchical": chosen(hierarchical),
        "explicit_ring": chosen([bool(o.device_order) for o in options]),
        "sharded_update": chosen([o.sharded_update for o in options]),
        "powersgd_rank": np.log2(1.0 + np.maximum(code - POWERSGD, 0)),
    }
    for each in Method:
        columns[f"method_{each.name.lower()}"] = method == each
    for number, name in enumerate(ENCODINGS[1:], start=1):
        columns[f"encoding_{name}"] = code == number
    return columns | _server_columns(shards, lead)


def _server_columns(shards: _ShardFacts, lead: I64) -> Columns:
    """A server by its bandwidth, its link's seconds and its speed; 0 where there is no owner."""
    population, cluster, travel = shards.population, shards.domain.cluster, shards.travel
    server = population.server[lead].astype(np.int64)
    owned = server >= 0
    node = cluster.node_of_server().astype(np.int64)
    nic = cluster.nic_bytes_per_second()
    ranks = np.array([member.ranks for member in cluster.nodes], dtype=np.float64)
    cells = len(population) * cluster.servers
    served = travel.bucket_root >= 0
    cell = travel.bucket_owner[served] * cluster.servers + travel.bucket_root[served]
    link = np.bincount(cell, weights=travel.bucket_link[served], minlength=cells)
    terms = np.bincount(cell, weights=travel.bucket_transfer[served], minlength=cells)
    at = shards.strategy[lead] * cluster.servers + np.maximum(server, 0)
    slow = np.zeros((len(population.layouts), cluster.servers))
    for number, layout in enumerate(population.layouts):
        slow[number, : cluster.world_size] = compute_factors(shards.domain, layout)
    layout_of = population.layout[shards.strategy[lead]]
    safe = np.maximum(server, 0)
    return {
        "server_bandwidth": owned * (nic / nic.mean())[node][safe],
        "server_link": owned * link[at] / shards.compute,
        "server_transfer": owned * terms[at] / shards.compute,
        "server_slowness": owned * slow[layout_of, safe],
        "server_replicas": owned * ranks[node][safe] / max(ranks.max(), 1.0),
        "server_dedicated": owned & (safe >= cluster.world_size),
    }


def _group_columns(shards: _ShardFacts, lead: I64, member: I64) -> Columns:
    table, timing = shards.domain.variables, shards.domain.timing
    size_bytes = shards.by_group(shards.size_bytes)[lead]
    use = timing.forward_start[table.first_use[shards.variable]]
    count = shards.by_group(np.ones(len(shards.group)))[lead]
    last = shards.group_extreme(shards.travel.ready, np.maximum, 0.0)[lead]
    soon = shards.group_extreme(use, np.minimum, np.inf)[lead]
    return {
        "group_size": _size(size_bytes),
        "group_fraction": size_bytes / shards.total_bytes,
        "group_shards": np.log2(count),
        "group_ready_place": last / max(timing.backward_seconds, 1e-9),
        "group_use_place": soon / max(timing.forward_seconds, 1e-9),
        "group_transfer": shards.by_group(shards.travel.transfer)[lead] / shards.compute,
        "group_startup": shards.by_group(shards.travel.startup)[lead] / shards.compute,
    }


def _schedule_columns(shards: _ShardFacts, lead: I64, member: I64) -> Columns:
    population, strategy = shards.population, shards.strategy[lead]
    slowest = np.zeros(len(population.layouts))
    squares = np.zeros(len(population.layouts))
    for number, layout in enumerate(population.layouts):
        factors = compute_factors(shards.domain, layout)
        slowest[number], squares[number] = factors.max(), float((factors**2).mean())
    slice_bytes = population.slice_bytes[strategy].astype(np.float64)
    columns: Columns = {
        "issue_place": _sum(member, shards.travel.issue_place) / np.bincount(member),
        "sliced": np.where(slice_bytes > 0, 2.0 - np.clip(_size(slice_bytes), 0.0, 2.0), 0.0),
        "buckets": np.log2(1.0 + _sum(member, shards.travel.buckets)),
        "overlap": population.overlap[strategy],
        "slowest_replica": slowest[population.layout[strategy]],
        "share_squares": squares[population.layout[strategy]],
    }
    for name, column in extension_features(population).items():
        columns[name] = column[strategy]
    for order in Order:
        columns[f"order_{order.name.lower()}"] = population.order[strategy] == order
    return columns


def _time_columns(shards: _ShardFacts, lead: I64, member: I64) -> Columns:
    travel, domain = shards.travel, shards.domain
    compute, count = shards.compute, len(lead)
    start = -_most(member, -travel.start, count)
    done = _most(member, travel.done, count)
    ready = _most(member, travel.ready, count)
    use = (
        domain.timing.backward_seconds
        + domain.timing.forward_start[domain.variables.first_use[shards.variable[lead]]]
    )
    return {
        "transfer": _sum(member, travel.transfer) / compute,
        "startup": _sum(member, travel.startup) / compute,
        "link": _sum(member, travel.link) / compute,
        "ready_time": ready / compute,
        "wait_time": (start - ready) / compute,
        "done_time": done / compute,
        "in_flight_time": (done - start) / compute,
        "late_time": np.maximum(done - use, 0.0) / compute,
    }
