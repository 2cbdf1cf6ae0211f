"""What a testbed finds out about itself before it measures anything."""

from dataclasses import dataclass
from statistics import median

from autosync.cluster import Cluster
from autosync.trials.testbed.all_reduce_rates import (
    AllReduceTime,
    measured_all_reduces,
    refuse_inaccurate_all_reduces,
)
from autosync.trials.testbed.link_rates import LinkRate, measured_links, refuse_inaccurate_links
from autosync.trials.testbed.link_shaping import emulated_nodes
from autosync.trials.testbed.namespaces import Testbed
from autosync.trials.testbed.rate_probes import RateProbes


@dataclass(frozen=True, slots=True)
class SelfCheck:
    links: tuple[LinkRate, ...]
    all_reduces: tuple[AllReduceTime, ...]

    @property
    def largest_error(self) -> float:
        """Of any link or all-reduce, relative to the cluster file; 0 where there are none."""
        errors = [link.error for link in self.links] + [one.error for one in self.all_reduces]
        return max((abs(error) for error in errors), default=0.0)

    @property
    def latency_seconds(self) -> tuple[float, float] | None:
        """Median and largest of all pairs of nodes, one way, in the testbed's own time; None for a
        single node."""
        each = [one.latency_seconds for one in self.links if one.latency_seconds is not None]
        return (median(each), max(each)) if each else None


def check_testbed(testbed: Testbed, cluster: Cluster) -> SelfCheck:
    """Every shaped link, then all-reduces on all those between nodes. About 1.4 s for four nodes,
    0.3 s more where links within nodes are shaped.

    Raises:
        InaccurateLink: something is more than 5 % off the file, or cannot be measured; names it.
    """
    rate_factor = testbed.byte_scale / testbed.time_scale
    expected = cluster.bandwidth_bytes_per_second() * rate_factor
    nodes = emulated_nodes(cluster, testbed.byte_scale, testbed.time_scale)
    within = [node.index for node in nodes if node.loopback_bits is not None]
    with RateProbes(testbed, expected) as probes:
        links = measured_links(probes, expected, within)
        refuse_inaccurate_links(links, testbed.id)
        all_reduces = measured_all_reduces(probes, expected)
    refuse_inaccurate_all_reduces(all_reduces, testbed.id)
    return SelfCheck(links, all_reduces)
