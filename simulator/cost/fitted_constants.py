"""Constants fitted to published measurements: what a cluster file cannot say of a testbed.

Rates and startups belong to the network and stand in the cluster file. What is left depends on
the model (devices of one node slow each other down in matrix products) or on the system that
synchronizes (its engine spends time on each message). datasets/measurements holds both, with the
rows they were fitted to; benchmarks/published_fit.py fits them.
"""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from operator import mul
from typing import ClassVar, Literal

from pydantic import ConfigDict

from autosync.bundled_data import data_file, data_folder
from autosync.cluster import Cluster, MessageCost, Node
from autosync.documents import STRICT, from_json
from autosync.domain import Domain
from autosync.errors import InvalidInput

MATRIX_PRODUCTS = frozenset({"addmm", "mm", "bmm", "baddbmm", "linear", "matmul"})
"""Operation types that are matrix products; convolutions are none."""

HALVES: tuple[Literal["all_to_all", "all_gather"], ...] = ("all_to_all", "all_gather")
"""A reduce-scatter (whose cost goes by all_to_all) and an all-gather are half a ring each."""


@dataclass(frozen=True, slots=True)
class NetworkConstants:
    """What one network's all-reduces were measured to take.

    bandwidth_gbps: payload of a worker host's NIC; None where nodes stand alone.
    server_bandwidth_gbps: payload of a dedicated server host, its sums included; None where it
        reaches the workers' rate.
    startup_seconds, startup_seconds_per_worker: of one all-reduce.
    """

    startup_seconds: float
    startup_seconds_per_worker: float = 0.0
    bandwidth_gbps: float | None = None
    server_bandwidth_gbps: float | None = None
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class Constants:
    """Everything fitted on one kind of testbed.

    clusters: patterns of the names of the clusters that these constants belong to.
    intra_bandwidth_gbps: payload between the devices of a node, and from them to its NIC.
    matrix_slowdown: how much longer matrix products take on devices that share their node with
        others at work than on one device alone (0.25 is 25 %).
    networks: by name; `node` is a node by itself, whose all-reduces stay inside.
    engine_seconds: by system, what its engine spends on each message before it starts.
    measured, fitted: where the measurements come from, and how the constants were found.
    """

    name: str
    clusters: tuple[str, ...]
    intra_bandwidth_gbps: float
    matrix_slowdown: float
    networks: dict[str, NetworkConstants]
    engine_seconds: dict[str, float]
    measured: str
    fitted: str
    version: Literal[1] = 1
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if "node" not in self.networks:
            raise InvalidInput(
                f"constants {self.name!r} state no network `node`.",
                thing="networks",
                value=sorted(self.networks),
                remedy="State the startup of an all-reduce that stays inside one node.",
            )
        numbers = {"matrix_slowdown": self.matrix_slowdown, **self.engine_seconds}
        for field, value in numbers.items():
            if not value >= 0:
                raise InvalidInput(
                    f"constants {self.name!r}: {field} must not be negative, got {value}.",
                    thing=field,
                    value=value,
                )


def load_constants(name: str) -> Constants:
    """The constants of datasets/measurements/NAME.json.

    Raises:
        NotFound: there are none of that name; lists those there are.
    """
    path = data_file("measurements", f"{name}.json")
    return from_json(Constants, path.read_bytes(), source=str(path))


def constants_of(cluster: Cluster) -> Constants | None:
    """The constants that belong to a cluster by its name, if any were fitted."""
    for path in sorted(data_folder("measurements").glob("*.json")):
        constants = load_constants(path.stem)
        if any(fnmatchcase(cluster.name, pattern) for pattern in constants.clusters):
            return constants
    return None


def calibrated(domain: Domain, matrix_slowdown: float) -> Domain:
    """A domain profiled on one device alone, with compute as devices that share a node take it."""
    if all(node.ranks < 2 for node in domain.cluster.nodes):
        return domain
    slower = [
        1.0 + matrix_slowdown * (operation.type in MATRIX_PRODUCTS)
        for operation in domain.graph.operations
    ]
    alone = domain.profile
    profile = replace(
        alone,
        forward_seconds=tuple(map(mul, alone.forward_seconds, slower)),
        backward_seconds=tuple(map(mul, alone.backward_seconds, slower)),
        note=f"{alone.note}; matrix products {matrix_slowdown:.0%} slower beside other devices",
    )
    return replace(domain, profile=profile)


def with_engine(cluster: Cluster, seconds: float) -> Cluster:
    """The cluster under an engine that spends `seconds` on each message."""
    others = tuple(cost for cost in cluster.costs if cost.kind != "engine")
    return replace(cluster, costs=(*others, MessageCost("engine", seconds)))


def with_network(cluster: Cluster, constants: Constants, network: str) -> Cluster:
    """The cluster at the fitted rates and startups of one of the networks; startups of `node` where
    only one node holds replicas, for then no all-reduce leaves it."""
    fitted = constants.networks[network]
    alone = sum(node.ranks > 0 for node in cluster.nodes) == 1
    startups = constants.networks["node"] if alone else fitted

    def at_rate(node: Node) -> Node:
        if node.server_only:
            rate = fitted.server_bandwidth_gbps or fitted.bandwidth_gbps or node.bandwidth_gbps
            return replace(node, bandwidth_gbps=rate)
        rate = fitted.bandwidth_gbps or node.bandwidth_gbps
        intra = constants.intra_bandwidth_gbps
        return replace(node, bandwidth_gbps=rate, intra_bandwidth_gbps=intra)

    start, per_worker = startups.startup_seconds, startups.startup_seconds_per_worker
    halves = tuple(MessageCost(kind, start / 2, per_worker / 2) for kind in HALVES)
    costs = (MessageCost("all_reduce", start, per_worker), *halves)
    return replace(cluster, nodes=tuple(map(at_rate, cluster.nodes)), costs=costs)
