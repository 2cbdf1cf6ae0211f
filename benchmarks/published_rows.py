"""Predicts published rows of real GPU clusters and prints every one beside what was measured.

python -m benchmarks.published_rows

`benchmarks.published_fit` fits the constants that it predicts with.
"""

import argparse
import csv
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from autosync.bundled_data import data_file
from autosync.cluster import Cluster
from autosync.cluster_file import load_cluster
from autosync.domain import Domain, Profile
from autosync.graph import ModelGraph
from autosync.models import bundled
from autosync.population import encode
from autosync.profiling import profile_at
from autosync.search.designs.published_methods import METHODS, method_named
from autosync.simulator.cost.fitted_constants import (
    Constants,
    calibrated,
    load_constants,
    with_engine,
    with_network,
)
from autosync.simulator.evaluation.metrics import pairs_ranked
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator

F64 = NDArray[np.float64]

TIE = 0.02
"""Pairs of methods that differ by less are ties, as the measurements' notes have it."""
NETWORKS = {"10GbE with TCP/IP": "10gbe", "100GbIB with RDMA": "ib100"}
MODELS = {"ResNet-50": "resnet50", "BERT-Base": "bert_base"}
DEVICE = "rtx-2080-ti"
GPUS_PER_NODE = 4


@dataclass(frozen=True, slots=True)
class Row:
    """A published measurement; seconds of an iteration, of one GPU alone and of all."""

    model: str
    batch_size: int
    network: str
    method: str
    gpus: int
    seconds_alone: float
    seconds: float

    @property
    def cell(self) -> tuple[str, str, int]:
        """Methods are compared within it."""
        return self.model, self.network, self.gpus

    @property
    def network_constants(self) -> str:
        return "node" if self.gpus == GPUS_PER_NODE else NETWORKS[self.network]

    @property
    def cluster(self) -> str:
        nodes = self.gpus // GPUS_PER_NODE
        if nodes == 1:
            return "rtx-2080-ti-1x4"
        servers = "-servers" if self.method.endswith("PS") else ""
        return f"rtx-2080-ti-{nodes}x4-{NETWORKS[self.network]}{servers}"


def read_rows(name: str = "ddl_benchmarks_2020.csv") -> list[Row]:
    """The rows of a table in datasets/measurements."""
    with data_file("measurements", name).open(newline="") as file:
        return [_row(record) for record in csv.DictReader(file)]


def _row(record: dict[str, str]) -> Row:
    batch_size, gpus = int(record["batch_per_gpu"]), int(record["gpus"])
    return Row(
        model=record["model"],
        batch_size=batch_size,
        network=record["network"],
        method=record["method"],
        gpus=gpus,
        seconds_alone=batch_size / float(record["samples_per_s_one_gpu"]),
        seconds=batch_size * gpus / float(record["samples_per_s"]),
    )


@lru_cache
def profiled(model: str, batch_size: int, seconds_alone: float) -> tuple[ModelGraph, Profile]:
    graph = bundled(MODELS[model], batch_size)
    return graph, profile_at(graph, seconds_alone, DEVICE)


named_cluster = lru_cache(load_cluster)


def predicted_seconds(row: Row, constants: Constants) -> float:
    """Of an iteration at the given constants, under the engine of the row's method."""
    cluster = with_network(named_cluster(row.cluster), constants, row.network_constants)
    engine = method_named(row.method).engine
    if engine:
        cluster = with_engine(cluster, constants.engine_seconds[engine])
    return _played_seconds(
        row.model,
        row.batch_size,
        row.seconds_alone,
        row.method,
        cluster,
        constants.matrix_slowdown,
    )


@cache
def _played_seconds(
    model: str,
    batch_size: int,
    seconds_alone: float,
    method: str,
    cluster: Cluster,
    matrix_slowdown: float,
) -> float:
    """Kept, because a fit varies one constant at a time and most rows depend on few of them."""
    graph, profile = profiled(model, batch_size, seconds_alone)
    domain = calibrated(Domain(graph, cluster, profile), matrix_slowdown)
    strategy = method_named(method).build(domain)
    return float(TimelineSimulator().predict(domain, encode([strategy], domain))[0])


def errors(rows: list[Row], predicted: F64) -> F64:
    """Relative errors of the throughput, `(rows,)`: measured seconds over predicted, less 1."""
    return np.array([row.seconds for row in rows]) / predicted - 1.0


def ranked(rows: list[Row], predicted: F64) -> tuple[float, int]:
    """Pairs of methods within a cell that are ranked rightly, and pairs in all, without ties."""
    right, count = 0.0, 0
    for cell in dict.fromkeys(row.cell for row in rows):
        mine = [i for i, row in enumerate(rows) if row.cell == cell]
        measured = np.array([rows[i].seconds for i in mine])
        of_cell = pairs_ranked(predicted[mine], measured, TIE)
        right, count = right + of_cell[0], count + of_cell[1]
    return right, count


def print_rows(rows: list[Row], predicted: F64) -> None:
    """Every row: throughput measured and predicted, and the error."""
    print("| model | network | GPUs | method | measured/s | predicted/s | error |")
    print("|---|---|---:|---|---:|---:|---:|")
    for row, seconds, error in zip(rows, predicted, errors(rows, predicted), strict=True):
        samples = row.batch_size * row.gpus
        print(
            f"| {row.model} | {row.network} | {row.gpus} | {row.method} | "
            f"{samples / row.seconds:.0f} | {samples / seconds:.0f} | {error:+.1%} |"
        )


def print_summary(title: str, rows: list[Row], predicted: F64) -> None:
    """Mean absolute errors by method and network, and how well methods are ranked."""
    wrong = np.abs(errors(rows, predicted))
    right, count = ranked(rows, predicted)
    networks = [network for network in NETWORKS if any(row.network == network for row in rows)]
    print(f"\n{title}: mean absolute error {wrong.mean():.1%}, worst {wrong.max():.1%};", end=" ")
    print(f"{right:g} of {count} pairs of methods ranked rightly ({right / count:.3f})\n")
    print(f"| method | {' | '.join(networks)} | both |")
    print(f"|---|{'---:|' * (len(networks) + 1)}")
    for method in (*METHODS, "all"):
        of_method = np.array([method in (row.method, "all") for row in rows])
        means = [wrong[of_method & [row.network == net for row in rows]].mean() for net in networks]
        cells = [f"{mean:.1%}" for mean in (*means, wrong[of_method].mean())]
        print(f"| {method} | {' | '.join(cells)} |")


def misranked(rows: list[Row], predicted: F64) -> list[tuple[Row, Row]]:
    """Pairs of a cell, the measured faster first, of which the prediction says otherwise."""
    found = []
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            apart = a.cell == b.cell and np.log(b.seconds / a.seconds) > TIE
            if apart and predicted[i] >= predicted[j]:
                found.append((a, b))
    return found


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    rows, constants = read_rows(), load_constants(DEVICE)
    predicted = np.array([predicted_seconds(row, constants) for row in rows])
    print_rows(rows, predicted)
    print_summary("In sample", rows, predicted)
    print("\nNot ranked rightly (the measured faster first):")
    for a, b in misranked(rows, predicted):
        print(f"- {a.model}, {a.network}, {a.gpus} GPUs: {a.method} before {b.method}")


if __name__ == "__main__":
    main()
