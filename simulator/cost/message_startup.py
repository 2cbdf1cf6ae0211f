"""What a message costs before its bytes."""

from autosync.cluster import Cluster, MessageKind
from autosync.codes import Op

ROUNDS_OF_ROWS = 2
"""Of a message of touched rows, whose number only the sender knows: a header, and the payload that
is asked for when the header is there (`runtime.transport.ragged`). Each is a message to the hosts
and to the links. Factors travel so, too, but what a round more would add is not found in what
their strategies measured (docs/simulator.md)."""


def startup_seconds(
    cluster: Cluster, kind: MessageKind, workers: int, latency_seconds: float
) -> float:
    """Of a message among so many workers. latency_seconds: of its steps one after another; a cost
    that the cluster states holds them already."""
    cost = cluster.cost(kind)
    startup = cost.startup_seconds + cost.startup_seconds_per_worker * workers
    return startup if cost in cluster.costs else startup + latency_seconds


def rounds_of(operation: Op) -> int:
    """How many times a message pays its startup, its hosts' work, and what a send holds links."""
    return ROUNDS_OF_ROWS if operation.sparse else 1
