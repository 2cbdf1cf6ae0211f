"""Draws how ranking by the timeline grows, and says how good its best is, by simulation alone.

python -m benchmarks.ranking_growth -o FILE.svg [--proposals 4096] [--most-devices 1024]

Time: of one ranking, the fastest of a few. Quality: what the timeline predicts of the best of the
sampled and the hand-designed strategies, and of torch's DDP, over the limit of the domain. The
clusters of the second table are those that the AutoSync paper names A1 to B12. A computing device
is assumed to take 0.2 s an iteration of any model, as if batches were chosen so.
"""

import argparse
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np

from autosync.cluster import Cluster, Device, Node
from autosync.cluster_file import bundled_clusters, load_cluster
from autosync.domain import Domain
from autosync.models import bundled
from autosync.population import encode
from autosync.profiling import profile_from_step_seconds
from autosync.search.designs import known_designs
from autosync.search.designs.design_table import hand_designed
from autosync.search.loop.ranking import rank
from autosync.search.space import Space
from autosync.simulator.limit import iteration_limit
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from benchmarks.measure import provenance

matplotlib.use("svg")
from matplotlib import pyplot

ROUNDS = 2
STEP_SECONDS = 0.2
MODELS = ("transformer", "bert_base", "densenet121", "bert_large", "densenet201", "nasnet_large")
"""From tens to some two thousand variables."""
PAPER_PREFIXES = ("aws-g3-", "aws-g4dn-")
GPUS_A_NODE = 8


@dataclass(frozen=True, slots=True)
class Growth:
    """One ranking. seconds: of the clock. ddp_seconds, best_seconds, limit_seconds: predicted."""

    label: str
    size: int
    seconds: float
    ddp_seconds: float
    best_seconds: float
    limit_seconds: float

    @property
    def row(self) -> str:
        ddp, best = (s / self.limit_seconds for s in (self.ddp_seconds, self.best_seconds))
        return f"| {self.label} | {self.size} | {self.seconds:.2f} s | {ddp:.2f} | {best:.2f} |"


def large_cluster(devices: int) -> Cluster:
    """Nodes of eight A100 on 100 Gbit Ethernet."""
    ranks = min(devices, GPUS_A_NODE)
    hosts = tuple(
        Node(f"10.0.{i // 250}.{i % 250 + 1}", (Device("a100", ranks),), 95.0, 2000.0)
        for i in range(devices // ranks)
    )
    return Cluster("benchmark", hosts)


def domain_on(model: str, cluster: Cluster) -> Domain:
    graph = bundled(model)
    profile = profile_from_step_seconds(graph, STEP_SECONDS, cluster.fastest_device_type)
    return Domain(graph, cluster, profile)


def growth_of(label: str, size: int, domain: Domain, proposals: int) -> Growth:
    """The fastest of a few rankings: what else the machine does only adds."""
    seconds, best = [], np.inf
    for _ in range(ROUNDS):
        began = time.perf_counter()
        ranked = rank(domain, Space(), TimelineSimulator(), proposals, 0, 256)
        seconds.append(time.perf_counter() - began)
        best = float(ranked.seconds[0])
    designs = [strategy for _, strategy in hand_designed(domain, Space())]
    designed = TimelineSimulator().predict(domain, encode(designs, domain))
    ddp = TimelineSimulator().predict(domain, encode([known_designs.ddp(domain)], domain))
    limit = iteration_limit(domain).seconds
    best = min(best, float(designed.min()))
    found = Growth(label, size, min(seconds), float(ddp[0]), best, limit)
    print(found.row, flush=True)
    return found


def doubled(least: int, most: int) -> list[int]:
    return [size for size in (least << k for k in range(32)) if size <= most]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--proposals", type=int, default=4096)
    parser.add_argument("--most-devices", type=int, default=1024)
    given = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in provenance().items()))
    small = domain_on("resnet50", large_cluster(8))
    rank(small, Space(), TimelineSimulator(), 8, 0, 8)  # compiles, or loads what was compiled
    print(f"\n{given.proposals} proposals\n")
    print("| | size | ranked in | DDP over limit | best over limit |")
    print("|---|---|---|---|---|")
    panels = {
        "devices (ResNet-50, nodes of 8)": [
            growth_of("devices", n, domain_on("resnet50", large_cluster(n)), given.proposals)
            for n in doubled(8, given.most_devices)
        ],
        "variables (8 devices)": sorted(
            (
                growth_of(name, len(domain.graph.variables), domain, given.proposals)
                for name in MODELS
                for domain in (domain_on(name, large_cluster(8)),)
            ),
            key=lambda each: each.size,
        ),
        "proposals (ResNet-50, 8 devices)": [
            growth_of("proposals", count, small, count) for count in doubled(1024, 32768)
        ],
    }
    for name in bundled_clusters():
        if name.startswith(PAPER_PREFIXES):
            cluster = load_cluster(name)
            growth_of(name, cluster.world_size, domain_on("bert_base", cluster), given.proposals)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"\npeak memory {peak:.2f} GB")
    draw(panels, given.output)


def draw(panels: dict[str, Sequence[Growth]], file: Path) -> None:
    pyplot.rcParams["svg.hashsalt"] = "ranking growth"
    figure, axes = pyplot.subplots(1, len(panels), figsize=(11, 3.4), layout="constrained")
    for axis, (name, points) in zip(axes, panels.items(), strict=True):
        sizes = [each.size for each in points]
        axis.loglog(sizes, [each.seconds for each in points], marker="o", color="#2563eb")
        axis.set(xlabel=name)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("seconds of a ranking, two cores")
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    main()
