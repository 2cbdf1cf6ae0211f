"""What a message takes alone where its bytes do not all pass its links at once.

A rank of a tree forwards what it has whole, the gather of a reduce follows its ring, and a ring
waits for its segments. What a cluster file states of a message, the probe has measured with all
of it.
"""

from collections.abc import Iterator

import numpy as np

from autosync.cluster import Cluster
from autosync.simulator.backends.message_edges import Edges
from autosync.simulator.cost.link_resources import Resources, passing


def lone_seconds_per_byte(cluster: Cluster, edges: Edges, where: Resources) -> float:
    """Seconds per byte that one replica contributes; at least those of the slowest link where the
    edges tell more than it, else 0."""
    if edges.whole:
        return _tree_seconds(cluster, edges, where)
    if edges.phase_edges:
        return sum(_phase_seconds(cluster, edges, each, where) for each in _phases(edges))
    if edges.waits_per_byte:
        ends = where.node[edges.source], where.node[edges.target]
        whole = np.ones(len(edges.source), dtype=np.bool_)
        waited = edges.waits_per_byte * float(where.pair_latency_seconds[ends].mean())
        return _busiest_seconds(cluster, edges, whole, where) + waited
    return 0.0


def _connection_rate(cluster: Cluster) -> float:
    """Bytes a second of one connection between two hosts; infinite where it fills a NIC."""
    return cluster.connection_gbps * 1e9 / 8 or np.inf


def _phases(edges: Edges) -> Iterator[np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    first = np.arange(len(edges.source)) < edges.phase_edges
    yield first
    yield ~first


def _phase_seconds(
    cluster: Cluster,
    edges: Edges,
    phase: np.ndarray[tuple[int], np.dtype[np.bool_]],
    where: Resources,
) -> float:
    """Each phase of a reduce was measured to take as long as all bytes of the message, its root's
    part among them, which no link carries."""
    ranks = edges.phase_edges
    return _busiest_seconds(cluster, edges, phase, where) * ranks / (ranks - 1)


def _busiest_seconds(
    cluster: Cluster,
    edges: Edges,
    chosen: np.ndarray[tuple[int], np.dtype[np.bool_]],
    where: Resources,
) -> float:
    """Of the busiest link or connection of some edges, per byte."""
    weight = np.where(chosen, edges.weight, 0.0)
    outside = where.node[edges.source] != where.node[edges.target]
    link = float((passing(edges, weight, where) / where.rate).max())
    most = float(weight[outside].max(initial=0.0))
    return max(link, most / _connection_rate(cluster))


def _tree_seconds(cluster: Cluster, edges: Edges, where: Resources) -> float:
    """Until the last rank has the message: a rank sends to all its children at once, which share
    its port and, on other nodes, its NIC."""
    children: dict[int, list[int]] = {}
    for source, target in zip(edges.source.tolist(), edges.target.tolist(), strict=True):
        children.setdefault(source, []).append(target)
    arrived: dict[int, float] = {}
    one = _connection_rate(cluster)
    for parent, sent in children.items():  # parents come before their children
        home = where.node[parent]
        away = sum(bool(where.node[child] != home) for child in sent)
        for child in sent:
            outside = where.node[child] != home
            sharing = away if outside else len(sent)
            rate = float(where.pair_rate[home, where.node[child]]) / sharing
            seconds = 1.0 / min(rate, one if outside else np.inf)
            arrived[child] = arrived.get(parent, 0.0) + seconds
    return max(arrived.values(), default=0.0)
