"""What several devices add to the compute of one, which no data sheet states.

Fitted to published training runs (`python -m benchmarks.published.training_rows --left-out`). How
far off these are when whole systems are left out is the width of a prediction's interval.
"""

from dataclasses import dataclass, replace
from math import log2

from autosync.cluster import Cluster
from autosync.domain import Domain


@dataclass(frozen=True, slots=True)
class ReplicationConstants:
    """What several devices add to the compute of one, as shares of it.

    replica_share: with more than one device: kernels of collectives take multiprocessors, hooks
        and copies of gradients take time. doubling_share: each doubling of the nodes, of which
        the slowest is waited for.
    overlap_slowdown: as a cluster's, where its file states none.
    error_share: nine of ten runs of left-out systems were off by less.
    """

    replica_share: float
    doubling_share: float
    overlap_slowdown: float
    error_share: float


REPLICATION = ReplicationConstants(0.028, 0.014, 0.5, 0.14)
"""Fitted to V100 and A100 systems of 2 to 1,024 GPUs (benchmarks.published.training_rows
--left-out prints forms and errors); taken for all GPUs."""


def replication_slowdown(cluster: Cluster, constants: ReplicationConstants = REPLICATION) -> float:
    """By which share compute takes longer than on one device alone."""
    hosts = sum(node.ranks > 0 for node in cluster.nodes)
    return constants.replica_share + constants.doubling_share * log2(hosts)


def with_replication(domain: Domain, slowdown: float) -> Domain:
    """A domain profiled on one device, whose compute takes the share `slowdown` longer on all."""
    profile = domain.profile
    stretched = replace(
        profile,
        forward_seconds=tuple(each * (1.0 + slowdown) for each in profile.forward_seconds),
        backward_seconds=tuple(each * (1.0 + slowdown) for each in profile.backward_seconds),
        note=f"{profile.note}; {slowdown:.1%} longer on {domain.world_size} devices",
    )
    return replace(domain, profile=stretched)
