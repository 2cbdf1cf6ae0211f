"""What a domain is like, in numbers that compare a laptop's cluster with a data centre's."""

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.simulator.backends import backend_of
from autosync.simulator.cost.compute_time import compute_factors
from autosync.strategy import even_replicas

DESCRIPTOR = (
    "log_world",
    "log_nodes",
    "replicas_of_a_node",
    "log_communication",
    "log_startup",
    "log_inside",
    "uneven_bandwidth",
    "uneven_compute",
    "dedicated_servers",
    "log_variables",
    "largest_variable",
    "median_variable",
    "early_bytes",
    "sparse_bytes",
    "factor_bytes",
    "nccl",
)


def describe_domain(domain: Domain) -> NDArray[np.float64]:
    """A `(len(DESCRIPTOR),)` array.

    communication: a ring's seconds over compute. startup: of an all-reduce, over compute and
    times the variables. inside: intra-node bandwidth over the NIC's. early_bytes: mean place of
    a byte in forward order (0 is the first operation). Logarithms are base 2.
    """
    graph, cluster, timing, table = domain.graph, domain.cluster, domain.timing, domain.variables
    size = table.size_bytes.astype(np.float64)
    total = size.sum()
    compute = max(timing.forward_seconds + timing.backward_seconds, 1e-9)
    nic = cluster.nic_bytes_per_second()
    world = cluster.world_size
    hosts = sum(not node.server_only for node in cluster.nodes)
    ring = 2.0 * (world - 1) / world * total / nic.min()
    cost = cluster.cost("all_reduce")
    startup = cost.startup_seconds + cost.startup_seconds_per_worker * world + cost.host_seconds
    inside = np.diag(cluster.bandwidth_bytes_per_second())
    inside = inside[np.isfinite(inside)]
    factors = compute_factors(domain, even_replicas(world))
    place = timing.forward_start[table.first_use] / max(timing.forward_seconds, 1e-9)
    small = [variable.factor_rows > 0 for variable in graph.variables]
    return np.array(
        [
            np.log2(world),
            np.log2(hosts),
            world / hosts,
            np.log2(ring / compute),
            np.log2(max(startup * len(size) / compute, 1e-6)),
            np.log2(inside.min() / nic.min()) if len(inside) and world > hosts else 0.0,
            1.0 - nic.min() / nic.mean(),
            1.0 - factors.mean() / factors.max(),
            sum(node.server_only for node in cluster.nodes) / len(cluster.nodes),
            np.log2(len(size)),
            size.max() / total,
            np.log2(np.median(size) / size.mean()) / 8.0,
            float((place * size).sum() / total),
            float(size[table.sparse].sum() / total),
            float(size[small].sum() / total),
            backend_of(cluster).descriptor,
        ]
    )
