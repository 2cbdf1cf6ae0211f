"""The published measurements of real GPU clusters, and what the timeline predicts for each."""

import csv
from dataclasses import dataclass
from functools import cache, lru_cache

from autosync.bundled_data import data_file
from autosync.cluster import Cluster
from autosync.cluster_file import load_cluster
from autosync.domain import Domain, Profile
from autosync.graph import ModelGraph
from autosync.models import bundled
from autosync.population import encode
from autosync.profiling import profile_from_step_seconds
from autosync.search.designs.published_methods import method_named
from autosync.simulator.cost.fitted_constants import (
    Constants,
    calibrated,
    with_engine,
    with_network,
)
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator

NETWORKS = {"10GbE with TCP/IP": "10gbe", "100GbIB with RDMA": "ib100"}
MODELS = {"ResNet-50": "resnet50", "BERT-Base": "bert_base"}
DEVICE = "rtx-2080-ti"
GPUS_PER_NODE = 4


@dataclass(frozen=True, slots=True)
class PublishedRow:
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


def read_rows(name: str = "ddl_benchmarks_2020.csv") -> list[PublishedRow]:
    """The rows of a table in datasets/measurements."""
    with data_file("measurements", name).open(newline="") as file:
        return [_row(record) for record in csv.DictReader(file)]


def _row(record: dict[str, str]) -> PublishedRow:
    batch_size, gpus = int(record["batch_per_gpu"]), int(record["gpus"])
    return PublishedRow(
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
    return graph, profile_from_step_seconds(graph, seconds_alone, DEVICE)


named_cluster = lru_cache(load_cluster)


def predicted_seconds(row: PublishedRow, constants: Constants) -> float:
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
    """Cached, because a fit varies one constant at a time and most rows depend on few of them."""
    graph, profile = profiled(model, batch_size, seconds_alone)
    domain = calibrated(Domain(graph, cluster, profile), matrix_slowdown)
    strategy = method_named(method).build(domain)
    return float(TimelineSimulator().predict(domain, encode([strategy], domain))[0])
