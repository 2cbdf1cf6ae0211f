"""A typed client of the REST service.

from autosync import Client

with Client("http://tuner.example.com:8080") as service:
    tuning = service.tunings.start("resnet50", "example-4x1", budget=24)
    for event in service.tunings.events(tuning.id):
        print(event.message)
    service.tunings.save_bundle(tuning.id, "best.json")
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from autosync.api.client.calls import (
    ClusterCalls,
    GraphCalls,
    KeyCalls,
    RuntimeCalls,
    SimulatorCalls,
    StrategyCalls,
    posted,
)
from autosync.api.client.service_connection import ServiceConnection, plain
from autosync.api.client.tuning_calls import TuningCalls
from autosync.api.engine.service_limits import ServiceLimits
from autosync.api.views.schemas import (
    CollectiveTable,
    ComparedClusters,
    GivenPredictions,
    Health,
    PredictedStrategies,
    Readiness,
    ScaledJob,
)
from autosync.cluster import Cluster
from autosync.documents import to_data
from autosync.environment import TOKEN_VARIABLE
from autosync.errors import InvalidInput
from autosync.graph import ModelGraph
from autosync.strategy import Strategy

ATTEMPTS = 5
TIMEOUT_SECONDS = 90.0
"""Of a request: predictions take up to a minute."""


class Client:
    """The service at an address. What it refuses is raised as `ServiceError`, and where it does not
    answer as `ServiceUnreachable`, both of them `AutosyncError`.

    graphs, clusters, strategies, tunings, simulators, runtimes, keys: what the service has, as its
    paths are called.
    """

    def __init__(
        self,
        address: str = "http://127.0.0.1:8080",
        token: str | None = None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        attempts: int = ATTEMPTS,
        sleep: Callable[[float], None] = time.sleep,
        transport: httpx.BaseTransport | None = None,
    ):
        """token: sent as a bearer token; by default that of AUTOSYNC_TOKEN, if there is one.
        attempts: how often a request is sent that does nothing twice, while the service is away or
        busy. sleep: waits between them. transport: in place of the network.

        Raises:
            InvalidInput: the address is none, or the token has characters that no header carries.
        """
        token = os.environ.get(TOKEN_VARIABLE) if token is None else token
        self.http = _opened(address, _authorization(token), timeout_seconds, transport)
        connection = self.connection = ServiceConnection(self.http, max(1, attempts), sleep)
        self.address = connection.address
        self.graphs = GraphCalls(connection)
        self.clusters = ClusterCalls(connection)
        self.strategies = StrategyCalls(connection)
        self.tunings = TuningCalls(connection)
        self.simulators = SimulatorCalls(connection)
        self.runtimes = RuntimeCalls(connection)
        self.keys = KeyCalls(connection)

    def rank(
        self, graph: ModelGraph | str, cluster: Cluster | str, **options: Any
    ) -> PredictedStrategies:
        """The best strategies by prediction, without a trial. graph, cluster: documents, which are
        stored, or the ids of stored ones, or names of bundled ones. options: other fields of
        `autosync.api.prediction_spec.RankSpec`."""
        body = {**posted(self.connection, graph, cluster), **plain(options)}
        return self.connection.post("/v1/rank", PredictedStrategies, repeatable=True, json=body)

    def predict(
        self,
        graph: ModelGraph | str,
        cluster: Cluster | str,
        strategies: Sequence[str | Strategy] = (),
        **options: Any,
    ) -> GivenPredictions:
        """What given strategies take on a cluster one need not have. graph, cluster: as of `rank`.
        strategies: names, or strategies; by default all hand-designed ones. options: other fields
        of `autosync.api.prediction_spec.PredictSpec`."""
        given = [each if isinstance(each, str) else to_data(each) for each in strategies]
        body = {**posted(self.connection, graph, cluster), "strategies": given, **plain(options)}
        return self.connection.post("/v1/predict", GivenPredictions, repeatable=True, json=body)

    def compare(
        self,
        graph: ModelGraph | str,
        clusters: Sequence[Cluster | str] | Mapping[Any, float | None],
        **options: Any,
    ) -> ComparedClusters:
        """The same model on several clusters: what to rent. graph, clusters: as of `rank`, these
        where known with what each costs an hour. Those without memory for it are `left_out`."""
        costs: Mapping[Any, float | None] = (
            clusters if isinstance(clusters, Mapping) else dict.fromkeys(clusters)
        )
        rented = [
            {
                "cluster": self.clusters.post(each).id if isinstance(each, Cluster) else each,
                "cost_per_hour": cost,
            }
            for each, cost in costs.items()
        ]
        name = self.graphs.post(graph).id if isinstance(graph, ModelGraph) else graph
        body = {"graph": name, "clusters": rented, **plain(options)}
        return self.connection.post("/v1/compare", ComparedClusters, repeatable=True, json=body)

    def scale(
        self,
        graph: ModelGraph | str,
        cluster: Cluster | str,
        nodes: Sequence[int],
        strategy: str | Strategy = "ddp",
        **options: Any,
    ) -> ScaledJob:
        """What a job reaches on these numbers of nodes. graph, cluster: as of `rank`. options:
        other fields of `autosync.api.prediction_spec.ScaleSpec`."""
        given = strategy if isinstance(strategy, str) else to_data(strategy)
        named = posted(self.connection, graph, cluster)
        body = {**named, "nodes": list(nodes), "strategy": given, **plain(options)}
        return self.connection.post("/v1/scale", ScaledJob, repeatable=True, json=body)

    def collectives(self, cluster: Cluster | str, **options: Any) -> CollectiveTable:
        """The table of nccl-tests as it is predicted for a cluster, a document or an id or name.
        options: other fields of `autosync.api.prediction_spec.CollectivesSpec`."""
        name = self.clusters.post(cluster).id if isinstance(cluster, Cluster) else cluster
        body = {"cluster": name, **options}
        return self.connection.post("/v1/collectives", CollectiveTable, repeatable=True, json=body)

    def limits(self) -> ServiceLimits:
        """What the operator of the service lets its clients ask for."""
        return self.connection.get("/v1/limits", ServiceLimits)

    def health(self) -> Health:
        return self.connection.get("/v1/health", Health)

    def ready(self) -> Readiness:
        """How many workers live, and how old the queue is."""
        answer = self.connection.send("GET", "/v1/ready", accepted=503)  # where none lives
        return self.connection.parsed(answer, Readiness)

    def schemas(self) -> dict[str, str]:
        """The documents that have a JSON Schema, and where it is."""
        found: dict[str, str] = self.connection.send("GET", "/v1/schemas").json()
        return found

    def schema(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.connection.send("GET", f"/v1/schemas/{name}").json()
        return found

    def close(self) -> None:
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _authorization(token: str | None) -> dict[str, str]:
    """The header that carries the token. A refusal does not show it."""
    if not token:
        return {}
    if not (token.isascii() and token.isprintable()):
        raise InvalidInput(
            "the key has characters that are no printable ASCII, such as the end of a line.",
            thing=TOKEN_VARIABLE,
            remedy=f"Set {TOKEN_VARIABLE} to the key alone, as `autosync keys add` printed it.",
        )
    return {"Authorization": f"Bearer {token}"}


def _opened(
    address: str,
    headers: dict[str, str],
    timeout_seconds: float,
    transport: httpx.BaseTransport | None,
) -> httpx.Client:
    try:
        url = httpx.URL(address)
    except httpx.InvalidURL as error:
        why = str(error)
    else:
        why = "" if url.scheme in ("http", "https") and url.host else "it names no http:// host"
    if why:
        raise InvalidInput(
            f"{address!r} is no address of a service: {why}.",
            thing="address",
            value=address,
            remedy="Give http://HOST:PORT or https://HOST.",
        )
    return httpx.Client(base_url=url, headers=headers, timeout=timeout_seconds, transport=transport)
