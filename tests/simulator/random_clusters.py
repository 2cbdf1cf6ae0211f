"""Small clusters of any shape."""

from dataclasses import replace
from typing import get_args

import numpy as np

from autosync.cluster import Backend, Cluster, Device, Link, Node


def random_cluster(rng: np.random.Generator) -> Cluster:
    """Two to five nodes of one to three devices, equal or not; at times a stated link, or dedicated
    server hosts."""
    count = int(rng.integers(2, 6))
    per_node = np.full(count, rng.integers(1, 4))
    gbps, intra_gbps = np.full(count, 10.0), np.full(count, 80.0)
    if rng.random() < 0.5:
        per_node = rng.integers(1, 4, count)
    if rng.random() < 0.5:
        gbps = rng.choice([1.0, 2.0, 5.0, 10.0], count)
        intra_gbps = rng.choice([50.0, 80.0], count)
    nodes = tuple(
        Node(f"10.0.0.{i + 1}", (Device("cpu", int(per_node[i])),), float(gbps[i]), intra)
        for i, intra in enumerate(intra_gbps.tolist())
    )
    if rng.random() < 0.25:
        nodes += (Node("10.0.1.1", (), 10.0, server_only=True),)
    cluster = Cluster("random", nodes, _backend(rng))
    if rng.random() < 0.25:
        return replace(cluster, links=(Link((nodes[0].address, nodes[1].address), 0.5),))
    return cluster


def _backend(rng: np.random.Generator) -> Backend:
    backends: tuple[Backend, ...] = get_args(Backend)
    return backends[int(rng.integers(len(backends)))]
