"""What a message costs before its bytes."""

from autosync.cluster import Cluster, MessageKind


def startup_seconds(
    cluster: Cluster, kind: MessageKind, workers: int, latency_seconds: float
) -> float:
    """Of a message among so many workers. latency_seconds: of its steps one after another; a cost
    that the cluster states holds them already."""
    cost = cluster.cost(kind)
    startup = cost.startup_seconds + cost.startup_seconds_per_worker * workers
    return startup if cost in cluster.costs else startup + latency_seconds
