"""Draws how the seconds of ranking by the timeline grow with proposals, variables and devices.

python -m benchmarks.search.ranking_growth -o FILE.svg
"""

import argparse
import time
from pathlib import Path

import matplotlib

from autosync.domain import Domain
from autosync.search.loop.ranking import rank
from autosync.search.space import Space
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from benchmarks.measure import provenance
from benchmarks.search.ranking_cost import domain_of

matplotlib.use("svg")
from matplotlib import pyplot

ROUNDS = 3
PROPOSALS = 8_192
FAMILY = ("bert_3l", "bert_6l", "bert_base")
"""One architecture of 3, 6 and 12 layers: other models differ in how far variables are cut, too."""


def seconds_of(domain: Domain, proposals: int) -> float:
    """The fastest of a few runs: what else the machine does only adds."""
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        rank(domain, Space(), TimelineSimulator(), proposals, 0, 256)
        found.append(time.perf_counter() - began)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    output: Path = parser.parse_args().output
    resnet = domain_of("resnet50", 4, 0.2)
    rank(resnet, Space(), TimelineSimulator(), 8, 0, 8)  # compiles, or loads what was compiled
    by_model = [domain_of(model, 4, 0.2) for model in FAMILY]
    panels = {
        "proposals (ResNet-50, 4 devices)": [
            (count, seconds_of(resnet, count)) for count in (4_096, 8_192, 16_384, 32_768)
        ],
        "variables (BERT of 3, 6 and 12 layers, 4 devices)": [
            (len(domain.graph.variables), seconds_of(domain, PROPOSALS)) for domain in by_model
        ],
        "devices (ResNet-50)": [
            (nodes, seconds_of(domain_of("resnet50", nodes, 0.2), PROPOSALS))
            for nodes in (2, 4, 8, 16, 32)
        ],
    }
    facts = provenance()
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for axis, (name, points) in zip(axes, panels.items(), strict=True):
        print(name, *(f"{size}: {seconds:.2f} s" for size, seconds in points), sep="\n  ")
        axis.plot(*zip(*points, strict=True), marker="o", color="#2563eb")
        axis.set(xlabel=name, xlim=(0, None), ylim=(0, None))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(f"seconds, {facts['cores']} cores")
    figure.savefig(output)


if __name__ == "__main__":
    main()
