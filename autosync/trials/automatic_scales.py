"""The scales at which a small machine stands in for a cluster."""

from autosync.cluster import Cluster
from autosync.domain import Domain


def automatic_scales(domain: Domain) -> tuple[float, float]:
    """(byte scale s, time scale k) that a small machine carries truthfully.

    s: the largest of 1, 1/2 ... 1/32 that keeps all NICs together below `CPU_SAFE_GBPS`; where
    even 1/32 does not, k doubles. k also doubles until an iteration's compute lasts
    `SHORTEST_COMPUTE_SECONDS`, far above the timer noise of its waits.
    """
    byte_scale, time_scale = cluster_scales(domain.cluster)
    seconds = domain.profile.compute_seconds
    while 0 < seconds * time_scale < SHORTEST_COMPUTE_SECONDS and time_scale < LARGEST_TIME_SCALE:
        time_scale *= 2
    return byte_scale, time_scale


def cluster_scales(cluster: Cluster) -> tuple[float, float]:
    """The scales that the links alone ask for; see `automatic_scales`."""
    total_gbps = sum(node.bandwidth_gbps for node in cluster.nodes)
    byte_scale, time_scale = 1.0, 1.0
    while byte_scale > SMALLEST_BYTE_SCALE and total_gbps * byte_scale > CPU_SAFE_GBPS:
        byte_scale /= 2
    while total_gbps * byte_scale / time_scale > CPU_SAFE_GBPS:
        time_scale *= 2
    return byte_scale, time_scale


CPU_SAFE_GBPS = 1.0
"""All nodes' NICs together, one direction, on two cores of any speed. Measured on slow ones, with
ResNet-50 on four nodes: at 2.4 Gbit/s (s = 1/16, k = 1) iterations spread by 8 to 15 %, at 0.6
(s = 1/32, k = 2) by 1 to 8 %; `autosync quickstart` prints such spreads."""

SMALLEST_BYTE_SCALE = 1 / 32
"""Smaller messages cost their startup and little else, and time scales do as well."""

SHORTEST_COMPUTE_SECONDS = 0.02
LARGEST_TIME_SCALE = 64.0

CORES_A_RANK = 2.0
"""What hosts of GPU clusters have at least for each GPU. With less, what ranks do themselves
(copies, sums, updates) weighs more than there: to the contest's answers one core a rank adds 1 to
8 % of an iteration, two half of it (benchmarks/contest/README.md)."""


def cores_a_rank(ranks: int, cores: int, time_scale: float) -> float:
    """What each rank has of a machine's cores while so many ranks share them, at the time scale's
    pace."""
    return cores * time_scale / ranks


def time_scale_of_cores(ranks: int, cores: int) -> float:
    """The time scale that gives each rank `CORES_A_RANK`; 1 where the machine has that many."""
    return max(1.0, CORES_A_RANK * ranks / cores)
