"""The names of all features, in the order of their columns.

Everything is relative (to compute, to the model's bytes, to the mean link), and nothing is a name:
exchanging identical hosts or renaming groups leaves every feature as it was.
"""

from autosync.codes import Channel, Op, Order
from autosync.simulator.timeline.what_if import WHAT_IFS

FEATURE_VERSION = 9
"""Goes up whenever the meaning of a feature changes, or what is kept of trials; a checkpoint of
another version is refused."""

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
