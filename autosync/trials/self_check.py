"""What a testbed finds out about itself before it measures anything."""

from dataclasses import dataclass

from autosync.cluster import Cluster
from autosync.trials.all_reduces import (
    AllReduceTime,
    measured_all_reduces,
    refuse_inaccurate_all_reduces,
)
from autosync.trials.links import LinkRate, measured_links, refuse_inaccurate_links
from autosync.trials.namespaces import Testbed
from autosync.trials.rate_probes import RateProbes


@dataclass(frozen=True, slots=True)
class SelfCheck:
    links: tuple[LinkRate, ...]
    all_reduces: tuple[AllReduceTime, ...]

    @property
    def largest_error(self) -> float:
        """Of any link or all-reduce, relative to the cluster file; 0 for a single node."""
        errors = [link.error for link in self.links] + [one.error for one in self.all_reduces]
        return max((abs(error) for error in errors), default=0.0)


def self_check(testbed: Testbed, cluster: Cluster) -> SelfCheck:
    """Every link, then all-reduces on all of them. About 1.4 s for four nodes.

    Raises:
        InaccurateLink: something is more than 5 % off the file; names it.
    """
    expected = cluster.bandwidth_bytes_per_second() * testbed.byte_scale / testbed.time_scale
    with RateProbes(testbed, len(cluster.nodes)) as probes:
        links = measured_links(probes, expected)
        refuse_inaccurate_links(links, testbed.id)
        all_reduces = measured_all_reduces(probes, expected)
    refuse_inaccurate_all_reduces(all_reduces, testbed.id)
    return SelfCheck(links, all_reduces)
