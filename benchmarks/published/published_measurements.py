"""The published measurements of real GPU clusters, and what the timeline predicts for each."""

from dataclasses import dataclass
from functools import lru_cache

from autosync.cluster import Cluster
from autosync.cluster.cluster_file import load_cluster
from autosync.domain import Domain, Profile
from autosync.graph import ModelGraph
from autosync.models import bundled
from autosync.plan import PlanTable
from autosync.population import Population, encode
from autosync.profiling import profile_from_step_seconds
from autosync.search.designs.published_methods import method_named
from autosync.simulator.cost.applied_constants import with_engine, with_replication_costs
from autosync.simulator.cost.fitted_constants import Constants
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from benchmarks.output import measurements
from benchmarks.published.published_clusters import with_network

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
    def network_constants(self) -> str | None:
        """Of `Constants.networks`; none for a node by itself."""
        return None if self.gpus == GPUS_PER_NODE else NETWORKS[self.network]

    @property
    def cluster(self) -> str:
        nodes = self.gpus // GPUS_PER_NODE
        if nodes == 1:
            return "rtx-2080-ti-1x4"
        servers = "-servers" if self.method.endswith("PS") else ""
        return f"rtx-2080-ti-{nodes}x4-{NETWORKS[self.network]}{servers}"


def read_rows() -> list[PublishedRow]:
    return [_row(record) for record in measurements("ddl_benchmarks_2020.csv")]


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
    graph, profile = profiled(row.model, row.batch_size, row.seconds_alone)
    domain = with_replication_costs(Domain(graph, cluster, profile), constants)
    return _played_seconds(row.method, row.model, row.cluster, domain)


def _played_seconds(method: str, model: str, cluster: str, domain: Domain) -> float:
    """Remembered, because a fit varies one constant at a time and most rows depend on few."""
    key = method, model, domain.cluster, domain.profile
    if key not in _PLAYED:
        population, plans = _compiled(method, model, cluster, domain)
        seconds = TimelineSimulator().predict_plans(domain, population, plans)
        _PLAYED[key] = float(seconds[0])
    return _PLAYED[key]


def _compiled(
    method: str, model: str, cluster: str, domain: Domain
) -> tuple[Population, PlanTable]:
    """MG-WFBP merges by estimated costs; the plans of all other methods depend on no constant."""
    key = method, model, cluster
    if key not in _COMPILED or method == "MG-WFBP":
        population = encode([method_named(method).build(domain)], domain)
        _COMPILED[key] = population, compile_plans_fast(population, domain)
    return _COMPILED[key]


_PLAYED: dict[tuple[str, str, Cluster, Profile], float] = {}
_COMPILED: dict[tuple[str, str, str], tuple[Population, PlanTable]] = {}
