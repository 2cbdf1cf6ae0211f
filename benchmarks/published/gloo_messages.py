"""gloo's messages on AWS, measured and predicted, with the latencies a ring waits out fitted to the
other numbers of nodes.

    python -m benchmarks.published.gloo_messages
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from autosync.cluster import Cluster, Device, Node
from autosync.codes import Op
from autosync.plan.plan_table import ALL_RANKS, cluster_teams
from autosync.simulator.backends.gloo import SEGMENT_BYTES, WAITS_PER_SEGMENT
from autosync.simulator.cost.network import network_of
from benchmarks.output import measurements

PAYLOAD_SHARE = 0.985
"""Of the instances' ports and of netem's limits, at AWS's MTU of 9001."""
PORT_GBPS = 10.0
CONNECTION_GBPS = 5.0
"""The most that AWS lets one flow carry (EC2 user guide, network bandwidth)."""
LATENCY_MS = 0.05

OPERATIONS = {"all_reduce": Op.ALL_REDUCE, "broadcast": Op.BROADCAST, "reduce": Op.REDUCE}


@dataclass(frozen=True, slots=True)
class GlooMessage:
    """One row: ranks stand on nodes of their own. limit_gbps: 0 without a limit."""

    operation: str
    size_bytes: int
    ranks: int
    delay_ms: float
    limit_gbps: float
    seconds: float


def gloo_messages() -> list[GlooMessage]:
    """The rows of gloo's collectives."""
    return [
        GlooMessage(
            *(row["method"], int(row["bytes"]), int(row["ranks"]), float(row["delay_ms"])),
            limit_gbps=float(row["limit_gbps"] or 0.0),
            seconds=float(row["milliseconds"]) / 1e3,
        )
        for row in measurements("aws_p3_messages.csv")
        if row["backend"] == "gloo" and row["method"] in OPERATIONS
    ]


def cluster_of(row: GlooMessage) -> Cluster:
    rate = (row.limit_gbps or PORT_GBPS) * PAYLOAD_SHARE
    latency_us = 1e3 * (row.delay_ms + LATENCY_MS)
    nodes = tuple(
        Node(f"10.0.0.{place}", (Device("v100"),), rate, latency_us=latency_us)
        for place in range(1, row.ranks + 1)
    )
    connection = 0.0 if row.limit_gbps else CONNECTION_GBPS * PAYLOAD_SHARE
    return Cluster("aws-p3", nodes, "gloo", connection_gbps=connection)


def predicted_seconds(row: GlooMessage) -> float:
    cluster = cluster_of(row)
    network = network_of(cluster, cluster_teams(cluster))
    place = int(network.class_of(OPERATIONS[row.operation], ALL_RANKS))
    return float(network.message_seconds[place] + row.size_bytes * network.seconds_per_byte[place])


def waits_per_segment(rows: Sequence[GlooMessage]) -> float:
    """Latencies that a segment of an all-reduce waits out: the median over delayed rows of what it
    took beyond its bytes."""
    found = []
    for row in rows:
        if row.operation != "all_reduce" or not row.delay_ms:
            continue
        waited = row.seconds - (predicted_seconds(row) - _waited(row, WAITS_PER_SEGMENT))
        found.append(waited / _waited(row, 1.0))
    return median(found)


def _waited(row: GlooMessage, waits: float) -> float:
    segments = 2 * (row.ranks - 1) / row.ranks * row.size_bytes / SEGMENT_BYTES
    return segments * waits * 1e-3 * (row.delay_ms + LATENCY_MS)


def left_out_seconds(rows: Sequence[GlooMessage]) -> dict[GlooMessage, float]:
    """Predicted of each row, with the waits fitted to the other numbers of ranks."""
    found = {}
    for ranks in sorted({row.ranks for row in rows}):
        waits = waits_per_segment([row for row in rows if row.ranks != ranks])
        for row in rows:
            if row.ranks != ranks:
                continue
            seconds = predicted_seconds(row)
            if row.operation == "all_reduce":
                seconds += _waited(row, waits) - _waited(row, WAITS_PER_SEGMENT)
            found[row] = seconds
    return found


def error_share(row: GlooMessage, seconds: float) -> float:
    return abs(seconds / row.seconds - 1.0)


def main() -> None:
    rows = gloo_messages()
    found = left_out_seconds(rows)
    print("operation   MB ranks delay ms  Gbit/s  measured ms  predicted ms  ratio")
    for row, seconds in found.items():
        print(
            f"{row.operation:10} {row.size_bytes / 1e6:4.0f} {row.ranks:5} {row.delay_ms:8g} "
            f"{row.limit_gbps or PORT_GBPS:7g} {row.seconds * 1e3:12.0f} {seconds * 1e3:13.0f} "
            f"{seconds / row.seconds:6.2f}"
        )
    print(f"waits a segment, all rows: {waits_per_segment(rows):.3f}; in use: {WAITS_PER_SEGMENT}")
    for ranks in sorted({row.ranks for row in rows}):
        others = [row for row in rows if row.ranks != ranks]
        print(f"  without {ranks} ranks: {waits_per_segment(others):.3f}")
    print("errors by operation, each number of ranks left out of the fit:")
    for operation in OPERATIONS:
        errors = [error_share(row, s) for row, s in found.items() if row.operation == operation]
        worst = f"largest {max(errors):.1%} of {len(errors)}"
        print(f"  {operation}: median {median(errors):.1%}, {worst}")


if __name__ == "__main__":
    main()
