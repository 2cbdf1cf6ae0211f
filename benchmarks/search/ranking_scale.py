"""What ranking costs on clusters of up to 1,024 devices and models of up to 2,000 variables, and
how good the best proposal is predicted to be; by simulation alone.

python -m benchmarks.search.ranking_scale [-o FILE.svg]

Seconds are of one core for 256 proposals, by stage; `first` is what a cluster and a model cost
once (compiled tables, the network, the limit). Then the limit over the best proposal's seconds in
the timeline, and how many times as fast as DDP it is. Clusters A1 to B12 are those of the AutoSync
supplement. The drawing shows both by devices and by variables.

The model is a chain of variables of mixed sizes, 400 MB in all; nodes have 8 devices, 100 Gbit/s
and 600 inside. Compute is a ring all-reduce at line rate over 1.5.
"""

import resource
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autosync.cluster import Cluster, Device, Node
from autosync.cluster.cluster_file import load_cluster
from autosync.domain import Domain
from autosync.graph import ModelGraph, Operation, Variable
from autosync.models import bundled
from autosync.population import encode
from autosync.profiling import profile_from_step_seconds
from autosync.search.designs import known_designs
from autosync.simulator.limit import iteration_limit
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from benchmarks.measure import provenance
from benchmarks.output import option_parser, print_head, print_row, pyplot, save_svg
from benchmarks.search.ranking_cost import rank_chunk

MODEL_BYTES = 400e6
RHO = 1.5
DEVICES = (8, 16, 32, 64, 128, 256, 512, 1024)
VARIABLES = (50, 100, 200, 500, 1000, 2000)
USUAL_DEVICES, USUAL_VARIABLES = 32, 200
PROPOSALS = 256
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
    """seconds: of one core, by stage; first_seconds: once. of_limit, over_ddp: of the best
    proposal, in the timeline."""

    name: str
    devices: int
    variables: int
    first_seconds: float
    seconds: dict[str, float]
    of_limit: float
    over_ddp: float
    peak_gb: float


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


def measured_row(name: str, domain: Domain) -> ScaleRow:
    began = time.process_time()
    limit = iteration_limit(domain).seconds
    rank_chunk(domain, 0, 1)
    first = time.process_time() - began
    chunk = rank_chunk(domain, 0, PROPOSALS)
    spent, best = {stage: chunk[stage] for stage in STAGES}, chunk["best_seconds"]
    timeline = TimelineSimulator()
    ddp = float(timeline.predict(domain, encode([known_designs.ddp(domain)], domain))[0])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    size = name, domain.world_size, len(domain.graph.variables)
    return ScaleRow(*size, first, spent, limit / best, ddp / best, peak)


def print_scale(row: ScaleRow) -> None:
    stages = [f"{row.seconds[stage]:.2f}" for stage in STAGES]
    sizes = row.name, row.devices, row.variables, f"{row.first_seconds:.1f}"
    best = f"{row.of_limit:.1%}", f"{row.over_ddp:.2f}", f"{row.peak_gb:.2f}"
    print_row(*sizes, *stages, *best)


COLOURS = {"first": "#6b7280", "sample": "#16a34a", "compile": "#d97706", "timeline": "#2563eb"}


def draw(panels: dict[str, tuple[str, list[ScaleRow]]], file: Path) -> None:
    """Above what ranking costs, below how near the best proposal is to the limit, by size."""
    figure, axes = pyplot("ranking scale").subplots(
        *(2, len(panels)), sharex="col", squeeze=False, height_ratios=(3, 2),
        figsize=(4.2 * len(panels), 6.0), layout="constrained",
    )  # fmt: skip
    for (cost, quality), (title, (field, rows)) in zip(axes.T, panels.items(), strict=True):
        sizes = [getattr(row, field) for row in rows]
        for stage, colour in COLOURS.items():
            spent = [row.seconds.get(stage, row.first_seconds) for row in rows]
            cost.plot(sizes, spent, marker="o", color=colour, label=stage)
        cost.set(xscale="log", yscale="log")
        quality.plot(sizes, [row.of_limit for row in rows], marker="o", color="#2563eb")
        quality.set(xlabel=title, ylim=(0, 1), xticks=sizes, xticklabels=sizes)
        quality.minorticks_off()
        for axis in (cost, quality):
            axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel(f"core-seconds, {PROPOSALS} proposals")
    axes[1, 0].set_ylabel("limit over best proposal")
    axes[0, 0].legend(fontsize=8)
    save_svg(figure, file)


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    given = parser.parse_args()
    measured_row("", chain_domain(8, 50))  # compiles, or loads what was compiled
    print(", ".join(f"{name} {value}" for name, value in provenance().items()))
    stages = [f"{stage}, s" for stage in ("first", *STAGES)]
    print_head("", "devices", "variables", *stages, "of the limit", "times DDP", "peak, GB")
    by_devices, by_variables = [], []
    for variables in VARIABLES:
        domain = chain_domain(USUAL_DEVICES, variables)
        by_variables.append(measured_row(f"{variables} variables", domain))
        print_scale(by_variables[-1])
    for name, preset in PAPER_CLUSTERS.items():
        for model in PAPER_MODELS:
            domain = at_rho(bundled(model), load_cluster(preset))
            print_scale(measured_row(f"{name}, {model}", domain))
    for devices in DEVICES:  # last: the peak is of all rows so far
        domain = chain_domain(devices, USUAL_VARIABLES)
        by_devices.append(measured_row(f"{devices} devices", domain))
        print_scale(by_devices[-1])
    if given.output:
        panels = {
            f"devices ({USUAL_VARIABLES} variables)": ("devices", by_devices),
            f"variables ({USUAL_DEVICES} devices)": ("variables", by_variables),
        }
        draw(panels, given.output)


if __name__ == "__main__":
    main()
