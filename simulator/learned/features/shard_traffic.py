"""What each shard costs on the wire: its message's times and equation terms, shared by bytes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.plan import PlanTable
from autosync.population import Population
from autosync.simulator.cost.network import network_of
from autosync.simulator.learned.features.what_if import TimelineTimes

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


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
    kind = costs.kinds_of(plans)
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
