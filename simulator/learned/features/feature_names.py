"""The names of all features, in the order of their columns, and which belong together.

Everything is relative (to compute, to the model's bytes, to the mean link), and nothing is a name:
exchanging identical hosts or renaming groups leaves every feature as it was.
"""

from typing import get_args

from autosync.codes import ENCODINGS, Channel, Method, Op, Order
from autosync.graph import DType

FEATURE_VERSION = 7
"""Goes up whenever the meaning of a feature changes, or what models keep of their trials; a
checkpoint of another is refused."""

DTYPES: tuple[str, ...] = get_args(DType)
DIMS = 4
"""Dimensions a convolution's weight has; those beyond are counted, not listed."""

SHARD_RAW = (
    "variable_size",
    "variable_fraction",
    *(f"dimension_{k}" for k in range(DIMS)),
    "dimensions",
    *(f"dtype_{dtype}" for dtype in DTYPES),
    "sparse",
    "touched_fraction",
    "factor_fraction",
    "ready_place",
    "first_use_place",
    "set_size",
    "set_fraction",
    "shards",
    "shard_squares",
    "largest_shard",
    "flat",
    "axis_place",
    *(f"method_{method.name.lower()}" for method in Method),
    "tree",
    "hierarchical",
    "explicit_ring",
    "sharded_update",
    *(f"encoding_{name}" for name in ENCODINGS[1:]),
    "powersgd_rank",
    "server_bandwidth",
    "server_link",
    "server_slowness",
    "server_replicas",
    "server_dedicated",
    "group_size",
    "group_fraction",
    "group_shards",
    "group_ready_place",
    "group_use_place",
    "issue_place",
    "sliced",
    "buckets",
    *(f"order_{order.name.lower()}" for order in Order),
    "overlap",
    "staleness",
    "slowest_replica",
    "share_squares",
)
"""What the strategy, the graph and the cluster say of a shard set (thesis 8.3.1)."""
SHARD_PRE = ("transfer", "startup", "link", "group_transfer", "group_startup", "server_transfer")
"""Terms of equations 2 and 3 in units of compute seconds."""
SHARD_TIMES = ("ready_time", "wait_time", "done_time", "in_flight_time", "late_time")
"""The timeline's, in units of compute seconds."""


FAMILIES: dict[str, tuple[Op, ...]] = {
    "all_reduce": (Op.ALL_REDUCE,),
    "tree": (Op.REDUCE, Op.BROADCAST),
    "halves": (Op.REDUCE_SCATTER, Op.ALL_GATHER),
    "server": (Op.PUSH, Op.PULL, Op.SPARSE_PUSH, Op.SPARSE_PULL),
    "rows": (Op.SPARSE_ALL_GATHER, Op.FACTOR_ALL_GATHER),
}
"""Kinds of message whose constants are likely to err together."""

WHAT_IFS = (
    "compute",
    "bandwidth",
    "engine",
    "one_in_flight",
    *(f"startup_{family}" for family in FAMILIES),
    *(f"copies_{family}" for family in FAMILIES),
)
"""Compute 10 % longer; links 10 % slower; an issue that costs half a startup; collectives one by
one; half as much startup again; copies that cost a quarter of the slowest link's time."""

COUNTED_CHANNELS = tuple(channel for channel in Channel if channel is not Channel.GATHER)
"""Messages are counted by these. All-gathers that leave while the wire is idle count among the
values': trained simulators keep their columns, and what it gains the timeline's terms tell."""

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
    *(f"messages_on_{channel.name.lower()}" for channel in COUNTED_CHANNELS),
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
"""What messages spend seconds on, summed over a strategy's messages."""
SUMMARY_TIMES = (
    "log_base",
    "log_analytic",
    *(f"log_{name}" for name in SPENT),
    *(f"{name}_share" for name in SPENT),
    "log_in_flight",
    "log_queue",
    *(f"if_{name}" for name in WHAT_IFS),
)
SUMMARY_COLUMNS = (*SUMMARY_RAW, *SUMMARY_PRE, *SUMMARY_TIMES)
SHARD_COLUMNS = (*SHARD_RAW, *SHARD_PRE, *SHARD_TIMES)
