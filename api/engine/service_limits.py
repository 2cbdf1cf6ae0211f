"""What a service lets its clients ask for: set by its operator, shown to everyone."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from autosync.api.spec import LARGEST_COUNT
from autosync.cluster import Cluster
from autosync.errors import AutosyncError, InvalidInput
from autosync.graph import ModelGraph
from autosync.search.loop.settings import Settings
from autosync.units import MIB

OF_BODIES = {
    "/v1/graphs": "graph_mib",
    "/v1/clusters": "cluster_mib",
    "/v1/tunings": "tuning_mib",
    "/v1/simulators": "simulator_mib",
    "/v1/rank": "tuning_mib",
    "/v1/predict": "tuning_mib",
    "/v1/compare": "tuning_mib",
    "/v1/scale": "tuning_mib",
    "/v1/collectives": "cluster_mib",
    "/v1/queue": "work_mib",
}
"""The limit of what is posted, by the beginning of its path."""
OF_FORMS = {
    "/models": "graph_mib",
    "/clusters": "cluster_mib",
    "/clusters/calibrate": "cluster_mib",
}
"""The limit of the file in a form of the dashboard, by the path of the form."""


class TryLater(AutosyncError):
    """Refused for now, by a limit that time heals: after `retry_seconds` it may be let through."""

    def __init__(self, message: str, *, thing: str, remedy: str, retry_seconds: float):
        super().__init__(message, thing=thing, remedy=remedy)
        self.retry_seconds = retry_seconds


def _limit(usual: int, description: str) -> Any:
    return field(default=usual, metadata={"description": description})


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Every one is a whole number of 1 or more; a field's description says of what.

    A client is a key's name, or an address where there is none.

    Raises:
        InvalidInput: a number is below 1, or above a thousand millions.
    """

    budget: int = _limit(1_000, "strategies that a tuning tries")
    proposals: int = _limit(1_000_000, "proposals that a tuning samples in a round")
    ranks: int = _limit(64, "ranks of the cluster that a tuning runs on")
    minutes: int = _limit(480, "minutes that workers spend on a tuning")
    queued: int = _limit(50, "tunings of one client that wait for a worker or are paused")
    nodes: int = _limit(1_024, "nodes of a cluster that is posted")
    devices: int = _limit(8_192, "devices of a cluster that is posted")
    operations: int = _limit(20_000, "operations of a graph that is posted")
    variables: int = _limit(20_000, "variables of a graph that is posted")
    graph_mib: int = _limit(32, "MiB of a graph that is posted")
    cluster_mib: int = _limit(1, "MiB of a cluster that is posted")
    tuning_mib: int = _limit(8, "MiB of a request for a tuning or a prediction")
    simulator_mib: int = _limit(32, "MiB of a trained simulator that is stored")
    work_mib: int = _limit(64, "MiB of what a worker sends at once: a round of proposals, a trial")
    reading_seconds: int = _limit(20, "processor seconds for reading what is posted")
    reading_mib: int = _limit(1_024, "MiB of memory for reading what is posted")
    requests: int = _limit(200, "requests a second of one client, where there are keys")
    prediction_seconds: int = _limit(60, "seconds that a prediction takes")
    prediction_memory_mib: int = _limit(2_048, "MiB of memory for a prediction")
    exports: int = _limit(4, "exports that one client reads at once")
    wrong_tokens: int = _limit(1, "different wrong tokens a second from one address")

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not 1 <= value <= LARGEST_COUNT:
                raise _no_limit(each.name, value, f"Give a whole number from 1 to {LARGEST_COUNT}.")


UNLIMITED = ServiceLimits(**{each.name: LARGEST_COUNT for each in fields(ServiceLimits)})
"""Of an application that only its operator uses."""


def limits_from(given: Iterable[str]) -> ServiceLimits:
    """The limits with those of texts like `budget=100` in place of the usual ones; later ones win.

    Raises:
        InvalidInput: a text names no limit, or its value is no number of 1 or more.
    """
    known = [each.name for each in fields(ServiceLimits)]
    stated: dict[str, int] = {}
    for text in filter(str.strip, given):
        name, _, value = text.strip().partition("=")
        if name not in known:
            raise _no_limit(name, value, f"Write NAME=NUMBER; names are {', '.join(known)}.")
        if not (value.isdecimal() and len(value) <= len(str(LARGEST_COUNT))):
            raise _no_limit(name, value, f"Write {name}=NUMBER, a whole number of 1 or more.")
        stated[name] = int(value)
    return ServiceLimits(**stated)


def check_settings(settings: Settings, ranks: int, limits: ServiceLimits) -> None:
    """Raises InvalidInput where a tuning is asked for more than the operator allows."""
    _check("budget", settings.budget, limits)
    _check("proposals", settings.proposals, limits)
    _check("ranks", ranks, limits)


def check_graph(graph: ModelGraph, limits: ServiceLimits) -> None:
    """Raises InvalidInput where the graph is larger than the operator allows."""
    _check("operations", len(graph.operations), limits)
    _check("variables", len(graph.variables), limits)


def check_cluster(cluster: Cluster, limits: ServiceLimits) -> None:
    """Raises InvalidInput where the cluster is larger than the operator allows."""
    _check("nodes", len(cluster.nodes), limits)
    devices = sum(device.count for node in cluster.nodes for device in node.devices)
    _check("devices", devices, limits)


def check_size(kind: str, body: bytes, limits: ServiceLimits) -> None:
    """Of a file in a form, of which only the whole was limited before: `graph` or `cluster`. Raises
    InvalidInput where the operator allows less."""
    name = f"{kind}_mib"
    most = getattr(limits, name)
    if len(body) > most * MIB:
        raise InvalidInput(
            f"the {kind} has {len(body)} bytes; the limit is {most} MiB.",
            thing=kind,
            value=len(body),
            remedy=f"Post a smaller one. {how_to_raise(name)}",
        )


def how_to_raise(name: str) -> str:
    """What the operator does about a limit."""
    return f"Whoever runs the service raises it: `autosync serve --limit {name}=NUMBER`."


def describe_limits() -> dict[str, str]:
    return {each.name: each.metadata["description"] for each in fields(ServiceLimits)}


def _check(name: str, value: int, limits: ServiceLimits) -> None:
    most = getattr(limits, name)
    if value > most:
        raise InvalidInput(
            f"{name} is {value}; this service allows {most} {describe_limits()[name]}.",
            thing=name,
            value=value,
            remedy=f"Ask for less. {how_to_raise(name)}",
        )


def _no_limit(name: str, value: object, remedy: str) -> InvalidInput:
    return InvalidInput(
        f"no limit can be {name[:40]!r} = {str(value)[:40]!r}.",
        thing="--limit",
        value=f"{name[:40]}={str(value)[:40]}",
        remedy=remedy,
    )
