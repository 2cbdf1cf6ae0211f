"""What ranking costs on clusters of up to 1,024 devices and models of up to 2,000 variables, and
how good the best proposal is predicted to be; by simulation alone.

python -m benchmarks.search.ranking_scale [--proposals 2048] [--devices 8 64 512 ...]
    [--variables 50 200 ...] [--no-papers] [-o FILE.svg]

Seconds are of one core for so many proposals, by stage; `first` is what a cluster and a model cost
once (compiled tables, the network, the limit). Then the best proposal in the timeline, as a share
of the limit and times DDP. Last the clusters A1 to B12 of the AutoSync supplement.

The model is a chain of variables of mixed sizes, 400 MB in all; nodes have 8 devices, 100 Gbit/s
and 600 inside. Compute is a ring all-reduce at line rate over 1.5.
"""

import argparse
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autosync.cluster import Cluster, Device, Node
from autosync.cluster_file import load_cluster
from autosync.domain import Domain
from autosync.graph import ModelGraph, Operation, Variable
from autosync.models import bundled
from autosync.population import encode
from autosync.profiling import profile_from_step_seconds
from autosync.search.designs import known_designs
from autosync.search.loop.ranking import rank
from autosync.search.space import Space
from autosync.simulator.limit import iteration_limit
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from benchmarks.search.ranking_cost import rank_chunk

MODEL_BYTES = 400e6
RHO = 1.5
DEVICES = (8, 16, 32, 64, 128, 256, 512, 1024)
VARIABLES = (50, 100, 200, 500, 1000, 2000)
USUAL_DEVICES, USUAL_VARIABLES = 32, 200
CHUNK = 256
STAGES = ("sample", "compile", "timeline")

PAPER_CLUSTERS = {
    "A1": "titan-x-16x1-40gbe",
    "A2": "titan-x-11x1-40gbe",
    "B1": "aws-g3-16xlarge-x2",
    "B2": "aws-g3-16xlarge-x3",
    "B3": "aws-g3-16xlarge-x4",
    "B4": "aws-g4dn-12xlarge-x1",
    "B5": "aws-g4dn-12xlarge-x2",
    "B6": "aws-g4dn-12xlarge-x3",
    "B7": "aws-g4dn-12xlarge-x4",
    "B8": "aws-g4dn-12xlarge-x8",
    "B9": "aws-g3-4xlarge-g3-16xlarge",
    "B10": "aws-g3-16xlarge-g4dn-12xlarge",
    "B11": "aws-g3-16xlarge-x2-g4dn-12xlarge-x2",
    "B12": "aws-g4dn-2xlarge-g4dn-12xlarge",
}
"""AutoSync supplement, table 2, and the presets that stand for them."""
PAPER_MODELS = ("vgg16", "bert_base")


@dataclass(frozen=True, slots=True)
class ScaleRow:
    """seconds: of one core, by stage, for all proposals; first_seconds: once. of_limit, over_ddp:
    of the best proposal, in the timeline."""

    name: str
    devices: int
    variables: int
    proposals: int
    first_seconds: float
    seconds: dict[str, float]
    of_limit: float
    over_ddp: float
    peak_gb: float

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())


def chain_model(variables: int) -> ModelGraph:
    """A chain in which operation i owns variable i; the largest is 2^11 times the smallest."""
    weights = [2.0 ** (7 * index % 12) for index in range(variables)]
    owned = tuple(
        Variable(f"v{i}", (max(1, round(MODEL_BYTES / 4 * weight / sum(weights))),))
        for i, weight in enumerate(weights)
    )
    operations = tuple(
        Operation(f"op{i}", "linear", 10**9, 2 * 10**9, 1 << 20, True, (i - 1,) if i else (), (i,))
        for i in range(variables)
    )
    backward = tuple(reversed(range(variables)))
    order = tuple(range(variables))
    return ModelGraph(f"chain_{variables}", 32, operations, owned, backward, backward, order)


def chain_domain(devices: int, variables: int) -> Domain:
    each = min(8, devices)
    nodes = tuple(
        Node(f"10.0.{i // 250}.{i % 250 + 1}", (Device("v100", each),), 95.6, 600.0)
        for i in range(devices // each)
    )
    return at_rho(chain_model(variables), Cluster(f"{devices} devices", nodes))


def at_rho(graph: ModelGraph, cluster: Cluster) -> Domain:
    """Compute as the ring's seconds say; on one node the ring runs inside it."""
    ranks = cluster.world_size
    several = len(cluster.nodes) > 1
    rates = cluster.nic_bytes_per_second() if several else cluster.bandwidth_bytes_per_second()
    ring = 2 * (ranks - 1) / ranks * graph.size_bytes / float(np.min(rates))
    profile = profile_from_step_seconds(graph, ring / RHO, cluster.fastest_device_type)
    return Domain(graph, cluster, profile)


def measured_row(name: str, domain: Domain, proposals: int) -> ScaleRow:
    began = time.perf_counter()
    limit = iteration_limit(domain).seconds
    rank_chunk(domain, 0, 1)
    first = time.perf_counter() - began
    spent = dict.fromkeys(STAGES, 0.0)
    for start in range(0, proposals, CHUNK):
        chunk = rank_chunk(domain, start, min(CHUNK, proposals - start))
        spent = {stage: spent[stage] + chunk[stage] for stage in STAGES}
    timeline = TimelineSimulator()
    best = float(rank(domain, Space(), timeline, proposals, 0, 1).seconds[0])
    ddp = float(timeline.predict(domain, encode([known_designs.ddp(domain)], domain))[0])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return ScaleRow(
        name,
        domain.world_size,
        len(domain.graph.variables),
        proposals,
        first,
        spent,
        limit / best,
        ddp / best,
        peak,
    )


def print_head() -> None:
    print(
        "| | devices | variables | first, s | sample, s | compile, s | timeline, s | "
        "of the limit | times DDP | peak, GB |"
    )
    print("|---" * 10 + "|")


def print_row(row: ScaleRow) -> None:
    stages = " | ".join(f"{row.seconds[stage]:.2f}" for stage in STAGES)
    print(
        f"| {row.name} | {row.devices} | {row.variables} | {row.first_seconds:.1f} | {stages} "
        f"| {row.of_limit:.1%} | {row.over_ddp:.2f} | {row.peak_gb:.2f} |",
        flush=True,
    )


def draw(panels: dict[str, tuple[str, list[ScaleRow]]], file: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "ranking scale"
    figure, axes = plt.subplots(1, len(panels), figsize=(5 * len(panels), 3.6), squeeze=False)
    for axis, (title, (field, rows)) in zip(axes[0], panels.items(), strict=True):
        sizes = [getattr(row, field) for row in rows]
        for stage in STAGES:
            axis.plot(sizes, [row.seconds[stage] for row in rows], marker="o", label=stage)
        axis.set(xlabel=title, ylabel="core-seconds", xscale="log", yscale="log")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--proposals", type=int, default=2048)
    parser.add_argument("--devices", type=int, nargs="*", default=DEVICES)
    parser.add_argument("--variables", type=int, nargs="*", default=VARIABLES)
    parser.add_argument("--no-papers", action="store_true", help="leave A1 to B12 out")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    given: Any = parser.parse_args()
    rank_chunk(chain_domain(8, 50), 0, 8)  # compiles, or loads what was compiled
    print_head()
    by_devices, by_variables = [], []
    for devices in given.devices:
        domain = chain_domain(devices, USUAL_VARIABLES)
        by_devices.append(measured_row(f"{devices} devices", domain, given.proposals))
        print_row(by_devices[-1])
    for variables in given.variables:
        domain = chain_domain(USUAL_DEVICES, variables)
        by_variables.append(measured_row(f"{variables} variables", domain, given.proposals))
        print_row(by_variables[-1])
    for name, preset in PAPER_CLUSTERS.items() if not given.no_papers else ():
        for model in PAPER_MODELS:
            domain = at_rho(bundled(model), load_cluster(preset))
            print_row(measured_row(f"{name}, {model}", domain, given.proposals))
    if given.output:
        panels = {
            f"devices ({USUAL_VARIABLES} variables)": ("devices", by_devices),
            f"variables ({USUAL_DEVICES} devices)": ("variables", by_variables),
        }
        draw({title: panel for title, panel in panels.items() if panel[1]}, given.output)


if __name__ == "__main__":
    main()
