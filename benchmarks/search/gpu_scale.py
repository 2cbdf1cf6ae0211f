"""Memory and seconds that ranking takes by the number of GPUs, up to 16,384.

python -m benchmarks.search.gpu_scale [--proposals 30000] [-o FILE.svg]

Nodes of 8 H100 (NVSwitch, eight InfiniBand ports of 400 Gbit/s). Each row is a process of its own:
memory is its peak above what the imports hold; `first` is what the cluster costs once (compiled
tables, classes of messages); then seconds to sample, compile and play the proposals.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from autosync.domain import Domain
from autosync.models import bundled
from autosync.profiling import estimate_profile
from benchmarks.output import option_parser, print_head, print_row, pyplot, save_svg
from benchmarks.published.training_systems import cluster_of
from benchmarks.search.ranking_cost import rank_all, rank_chunk

MODELS = ("resnet50", "bert_base")
GPUS = (8, 64, 256, 1024, 4096, 16_384)
STAGES = ("sample", "compile", "timeline")
"""Whose core-seconds a row states."""


def domain_of(model: str, gpus: int) -> Domain:
    graph, cluster = bundled(model), cluster_of("8 H100 a node", gpus)
    return Domain(graph, cluster, estimate_profile(graph, "h100"))


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def measured(model: str, gpus: int, proposals: int) -> dict[str, Any]:
    """Of this process. A small cluster first, so that compiled code is there."""
    rank_chunk(domain_of(model, 16), 0, 8)
    imports = peak_mb()
    domain = domain_of(model, gpus)
    began = time.perf_counter()
    rank_chunk(domain, 0, 1)
    first = time.perf_counter() - began
    spent, wall = rank_all(domain, proposals)
    stages = {stage: spent[stage] for stage in STAGES}
    return {"gpus": gpus, "first": first, "wall": wall, "mb": peak_mb() - imports} | stages


def row_of(model: str, gpus: int, proposals: int) -> dict[str, Any]:
    """Measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.search.gpu_scale"]
    command += ["--only", model, str(gpus), "--proposals", str(proposals)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def draw(rows: dict[str, list[dict[str, Any]]], file: Path) -> None:
    """Core-seconds, which others on the machine change little, and memory by GPUs."""
    figure, axes = pyplot("gpu scale").subplots(1, 2, figsize=(8.4, 3.2), layout="constrained")
    for model, found in rows.items():
        gpus = [row["gpus"] for row in found]
        spent = [sum(row[stage] for stage in STAGES) for row in found]
        axes[0].plot(gpus, spent, marker="o", label=model)
        axes[1].plot(gpus, [row["mb"] for row in found], marker="o", label=model)
    for axis, label in zip(axes, ("core-seconds", "MB above the imports"), strict=True):
        axis.set(xscale="log", yscale="log", xlabel="GPUs", ylabel=label)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    save_svg(figure, file)


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--proposals", type=int, default=30_000)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        model, gpus = given.only
        print(json.dumps(measured(model, int(gpus), given.proposals)))
        return
    print_head("model", "GPUs", "first, s", "wall, s", *STAGES, "MB")
    rows: dict[str, list[dict[str, Any]]] = {}
    for model in MODELS:
        for gpus in GPUS:
            row = row_of(model, gpus, given.proposals)
            rows.setdefault(model, []).append(row)
            stages = [f"{row[stage]:.1f}" for stage in STAGES]
            once = f"{row['first']:.2f}", f"{row['wall']:.1f}"
            print_row(model, gpus, *once, *stages, f"{row['mb']:.0f}")
    if given.output:
        draw(rows, given.output)


if __name__ == "__main__":
    main()
