"""Our own documents: clusters, graphs, strategies, domains, bundles, and what workers say."""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from autosync.api.db.document_store import cluster_row, graph_row
from autosync.api.engine.service_limits import ServiceLimits, check_cluster, check_graph
from autosync.bundle import make_bundle, read_bundle
from autosync.cluster.cluster_file import load_cluster
from autosync.documents import from_json, to_json
from autosync.domain import Domain, Profile
from autosync.graph import ModelGraph
from autosync.plan import compile_plans
from autosync.population import encode
from autosync.profiling import estimate_profile
from autosync.search.collect.collection_plan import load_plan
from autosync.search.designs.design_table import DESIGNS, fitted
from autosync.search.space import Space
from autosync.strategy import Strategy
from autosync.trials.commands import (
    Answer,
    Command,
    JoinGroup,
    MeasuredIterations,
    MessagesTimed,
    PassDone,
    RunPass,
    StartWorker,
    answer_line,
    command_line,
    read_answer,
    read_command,
)
from autosync.trials.contract import Workload
from autosync.verification import verify
from benchmarks.fuzz.fuzzed_parser import FuzzedParser, used
from tests.domains import chain_graph, domain_of, grid_cluster

DATASETS = Path(__file__).parents[2] / "datasets"
COLLECTION = DATASETS / "runtimes/plan.yaml"
VERSION_1 = Path(__file__).parents[2] / "tests/autosync/plan/bundle_version_1.json"
LIMITS = ServiceLimits()
SUBMITTED = ("ddp", "all_reduce_5mb", "ps_load_balanced", "ps_partitioned", "zero1", "parallax")
FOLDER = TemporaryDirectory(prefix="fuzzed-")


def file_of(data: bytes, name: str) -> Path:
    """Written where the parser takes a path."""
    path = Path(FOLDER.name, name)
    path.write_bytes(data)
    return path


def read_cluster_file(data: bytes) -> None:
    cluster = load_cluster(file_of(data, "cluster.yaml"))
    check_cluster(cluster, LIMITS)
    used(cluster_row(cluster).id, cluster.bandwidth_bytes_per_second(), cluster.latency_seconds())


def use_submitted_graph(graph: ModelGraph) -> None:
    check_graph(graph, LIMITS)
    used(graph_row(graph).id)
    use_graph(graph)


def use_graph(graph: ModelGraph) -> None:
    """As a ranking begins, and as what is stored is read again."""
    again = from_json(ModelGraph, to_json(graph), source="graph")
    assert again == graph, "it does not come back as it was stored"
    use_domain(Domain(graph, grid_cluster(), estimate_profile(graph, "v100")))


def use_strategy(strategy: Strategy) -> None:
    verify(strategy, DOMAIN, allow_lossy=True, allow_inexact=True)
    used(strategy.id, compile_plans(encode([strategy], DOMAIN), DOMAIN))


def use_domain(domain: Domain) -> None:
    check_cluster(domain.cluster, LIMITS)
    used(domain.id, domain.variables, domain.timing, domain.compute_seconds)


def use_profile(profile: Profile) -> None:
    used(Domain(DOMAIN.graph, DOMAIN.cluster, profile).timing, to_json(profile))


def read_bundle_file(data: bytes) -> None:
    shipped = read_bundle(data)
    used(to_json(shipped), shipped.plan.id, shipped.strategy.id)


def read_worker_line(data: bytes) -> None:
    line = data.decode("utf-8", "replace")
    if read_answer(line) is None:
        read_command(line)


DOMAIN = domain_of(chain_graph(sparse=(2,), factor_rows=8))
T = TypeVar("T")


def written(*documents: object) -> list[bytes]:
    return [to_json(each).encode() for each in documents]


def document_parser(
    kind: type[T], documents: Sequence[T], use: Callable[[T], object]
) -> FuzzedParser:
    """Of documents of a class, by its name."""
    name = kind.__name__.removeprefix("Model").lower()

    def parse(data: bytes) -> None:
        use(from_json(kind, data, source=name))

    return FuzzedParser(name, "json", written(*documents), parse)


def document_parsers() -> list[FuzzedParser]:
    built = (fitted(DOMAIN, Space(), DESIGNS[name]) for name in SUBMITTED)
    strategies = [strategy for strategy in built if strategy is not None]
    bundles = written(*(make_bundle(each, DOMAIN) for each in strategies[:3]))
    clusters = [path.read_bytes() for path in sorted((DATASETS / "clusters").glob("*.yaml"))[:8]]
    return [
        FuzzedParser("cluster-yaml", "lines", clusters, read_cluster_file),
        FuzzedParser("cluster-json", "json", written(grid_cluster(3, 2)), read_cluster_file),
        document_parser(ModelGraph, (chain_graph(), DOMAIN.graph), use_submitted_graph),
        document_parser(Strategy, strategies, use_strategy),
        document_parser(Domain, (DOMAIN,), use_domain),
        FuzzedParser("bundle", "json", [*bundles, VERSION_1.read_bytes()], read_bundle_file),
        document_parser(Profile, (DOMAIN.profile,), use_profile),
        document_parser(Space, (Space(),), to_json),
        FuzzedParser("worker-line", "json", worker_lines(), read_worker_line),
        FuzzedParser(
            "collection-plan",
            "lines",
            [COLLECTION.read_bytes()],
            lambda data: load_plan(file_of(data, "plan.yaml")),
        ),
    ]


def worker_lines() -> list[bytes]:
    measured = MeasuredIterations((0.0, 1.0, 2.0), 2.5, 1.0, 3.0, 4.0, 1 << 20)
    commands: tuple[Command, ...] = (
        StartWorker(0, 0, "10.0.0.1", Workload(DOMAIN)),
        JoinGroup("10.0.0.1", 4321, 4, ""),
        RunPass("key", 1, 2, True, None),
    )
    answers: tuple[Answer, ...] = (
        PassDone(measured, "kernel", 1 << 30, 0.5),
        MessagesTimed("kernel", (0.5, 1.0), (0.75, 1.25)),
    )
    lines = [command_line(each) for each in commands] + [answer_line(each) for each in answers]
    return [line.strip().encode() for line in lines]
