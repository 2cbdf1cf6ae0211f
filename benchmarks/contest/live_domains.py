"""The domains of the live contest, fixed before any of its trials."""

from dataclasses import dataclass

import numpy as np

from autosync.cluster import Cluster
from autosync.cluster_file import load_cluster
from autosync.domain import Domain, Optimizer
from autosync.graph import ModelGraph
from autosync.models import bundled
from autosync.profiling import profile_from_step_seconds
from autosync.search.collect.collection_plan import STATE_TENSORS


@dataclass(frozen=True, slots=True)
class ContestDomain:
    """rho: seconds of a ring all-reduce at the slowest NIC's rate over those of forward and
    backward on the fastest device; of a sparse variable the ring carries the touched rows alone.
    byte_scale s, time_scale k: of the testbed. warmup, iterations: of a pass."""

    name: str
    model: str
    cluster: str
    rho: float
    byte_scale: float
    time_scale: float
    optimizer: str
    warmup: int = 2
    iterations: int = 5


DOMAINS = (
    ContestDomain("resnet50-4x1", "resnet50", "example-4x1", 1.5, 1 / 32, 2, "momentum", 1, 4),
    ContestDomain("vgg16-4x1", "vgg16", "example-4x1-40gbe", 3, 1 / 128, 2, "momentum", 1, 4),
    ContestDomain("bert-base-2x2", "bert_base", "example-2x2", 2, 1 / 32, 2, "adamw", 1, 4),
    ContestDomain("transformer-2x2", "transformer", "example-2x2", 1.5, 1 / 32, 4, "adamw", 1, 3),
    ContestDomain("ncf-4x1", "ncf_sparse", "example-4x1", 2, 1, 64, "adagrad", 1, 4),
    ContestDomain("resnet50-uneven", "resnet50", "example-uneven", 2, 1 / 32, 2, "momentum", 1, 4),
    ContestDomain("resnet101-8x1", "resnet101", "example-8x1", 1, 1 / 128, 4, "momentum", 1, 3),
)
"""rho between 1 and 3; scales as in `datasets/runtimes/plan.yaml`, slower where its passes
repeated badly at k = 1."""


def domain_of(given: ContestDomain) -> Domain:
    """The domain, its communication costs assumed."""
    graph, cluster = bundled(given.model), load_cluster(given.cluster)
    compute = ring_seconds(graph, cluster) / given.rho
    optimizer = Optimizer(given.optimizer, state_tensors=STATE_TENSORS[given.optimizer])
    profile = profile_from_step_seconds(graph, compute, cluster.fastest_device_type)
    return Domain(graph, cluster, profile, optimizer)


def ring_seconds(graph: ModelGraph, cluster: Cluster) -> float:
    """A ring all-reduce of what an iteration changes, at the slowest NIC's rate."""
    ranks = cluster.world_size
    slowest = float(np.min(cluster.nic_bytes_per_second()))
    changed = sum(
        variable.size_bytes * variable.touched_rows / variable.shape[0]
        if variable.sparse
        else variable.size_bytes
        for variable in graph.variables
    )
    return 2 * (ranks - 1) / ranks * changed / slowest


def domain_named(name: str) -> ContestDomain:
    """Raises SystemExit, which lists the names there are."""
    for each in DOMAINS:
        if each.name == name:
            return each
    raise SystemExit(f"no domain {name!r}; there are {', '.join(d.name for d in DOMAINS)}")
