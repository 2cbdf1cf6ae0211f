"""What knobs of NCCL change: the seconds of collectives, and what these take from compute.

The model of NCCL's collectives knows forced algorithms and protocols, channels and sockets. PXN,
min_ctas and clusters of CTAs change nothing there, so only trials tell.
"""

from dataclasses import replace
from typing import Any

from autosync.domain import Domain
from autosync.nccl_knobs import NcclKnobs
from autosync.population import Population
from autosync.simulator.backends.nccl import Forced, cost_segments
from autosync.simulator.backends.nccl.tuner import runnable
from autosync.simulator.extension_prediction import Prediction
from autosync.simulator.topology import topology_of
from autosync.strategy import Strategy

TOGETHER = (
    ("ranges",),
    ("min_ctas", "max_ctas"),
    ("cga_cluster_size",),
    ("socket_threads", "sockets_per_thread"),
    ("pxn",),
)
"""Fields of knobs of which a strategy states all or none."""


class NcclPrediction(Prediction):
    restates_domains = True

    def restated(self, domain: Domain, population: Population, index: int) -> Domain:
        """On the cluster whose jobs tell NCCL so. Collectives slow compute by the multiprocessors
        that they take, so in proportion to their channels.

        Raises:
            InvalidInput: an algorithm or protocol does not run there.
        """
        knobs = population.entry(index, NcclKnobs)
        assert knobs is not None
        for each in knobs.ranges:  # refuses what runs on no such cluster
            forced = Forced(each.algorithm, each.protocol)
            runnable(topology_of(domain.cluster), each.operation, forced)
        jobs = domain.cluster.nccl or NcclKnobs()
        told = _beside(knobs, jobs)
        cluster = replace(domain.cluster, nccl=told)
        slowdown = cluster.overlap_slowdown
        if slowdown and told.max_ctas != jobs.max_ctas:
            before, now = (
                cost_segments(topology_of(each), "all_reduce") for each in (domain.cluster, cluster)
            )
            if before:  # of several ranks
                slowdown *= now[-1].channels / before[-1].channels
                cluster = replace(cluster, overlap_slowdown=slowdown)
        return replace(domain, cluster=cluster)

    def account(self, domain: Domain, strategy: Strategy) -> list[str]:
        knobs = strategy.extension(NcclKnobs)
        assert knobs is not None
        unknown = {
            "min_ctas": knobs.min_ctas,
            "cga_cluster_size": knobs.cga_cluster_size is not None,
            "pxn": knobs.pxn is not None and topology_of(domain.cluster).spine is None,
        }
        names = [name for name, stated in unknown.items() if stated]
        return [f"No prediction knows what {', '.join(names)} changes."] if names else []


PREDICTION = NcclPrediction()


def _beside(knobs: NcclKnobs, jobs: NcclKnobs) -> NcclKnobs:
    """The knobs of a strategy and, where it states none, those that jobs set anyway."""
    nothing = NcclKnobs()
    kept: dict[str, Any] = {
        name: getattr(jobs, name)
        for fields in TOGETHER
        if all(getattr(knobs, each) == getattr(nothing, each) for each in fields)
        for name in fields
    }
    return replace(knobs, **kept)
