"""What a client asks of the service beside tunings: documents, simulators, runtimes, keys."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, get_args

import httpx

from autosync.api.client.service_connection import ServiceConnection, given
from autosync.api.client.service_errors import unreachable
from autosync.api.spec import KeyScope
from autosync.api.views.schemas import (
    ApiKey,
    ApiKeys,
    CalibratedCluster,
    Clusters,
    Graphs,
    MadeKey,
    Simulators,
    SimulatorTraining,
    SimulatorTrainings,
    SimulatorVersions,
    StoredDocument,
    TrainedSimulator,
)
from autosync.atomic_write import replaced_atomically
from autosync.cluster import Cluster
from autosync.documents import from_json, to_json
from autosync.errors import InvalidInput
from autosync.graph import ModelGraph
from autosync.strategy import Strategy

LISTED = 100


@dataclass(frozen=True, slots=True)
class GraphCalls:
    connection: ServiceConnection

    def post(self, graph: ModelGraph | str | bytes) -> StoredDocument:
        """Store a graph, or its JSON; the same one posted twice is one."""
        text = to_json(graph) if isinstance(graph, ModelGraph) else graph
        return self.connection.post("/v1/graphs", StoredDocument, repeatable=True, content=text)

    def list(
        self, *, limit: int | None = LISTED, cursor: str | None = None, sort: str = "-created"
    ) -> Graphs:
        """limit: None lists all."""
        return self.connection.listed("/v1/graphs", Graphs, limit, cursor, sort=sort)

    def get(self, graph_id: str) -> ModelGraph:
        """A posted graph by its id, or a bundled one by its name."""
        return from_json(ModelGraph, self.connection.send("GET", f"/v1/graphs/{graph_id}").content)


@dataclass(frozen=True, slots=True)
class ClusterCalls:
    connection: ServiceConnection

    def post(self, cluster: Cluster | str | bytes) -> StoredDocument:
        """Store a cluster, or its YAML or JSON; the same one posted twice is one."""
        text = to_json(cluster) if isinstance(cluster, Cluster) else cluster
        return self.connection.post("/v1/clusters", StoredDocument, repeatable=True, content=text)

    def list(
        self, *, limit: int | None = LISTED, cursor: str | None = None, sort: str = "-created"
    ) -> Clusters:
        """limit: None lists all."""
        return self.connection.listed("/v1/clusters", Clusters, limit, cursor, sort=sort)

    def calibrate(self, cluster_id: str, log: str, **stated: Any) -> CalibratedCluster:
        """Store the cluster with what a log of nccl-tests measured, under an id of its own.
        stated: `operation`, `ranks` and `nodes`, where the log does not say them."""
        path = f"/v1/clusters/{cluster_id}/calibrate"
        return self.connection.post(
            path, CalibratedCluster, repeatable=True, content=log, params=given(stated)
        )

    def get(self, cluster_id: str) -> Cluster:
        """A posted cluster by its id, or a bundled one by its name."""
        answer = self.connection.send("GET", f"/v1/clusters/{cluster_id}")
        return from_json(Cluster, answer.content)


def posted(
    connection: ServiceConnection, graph: ModelGraph | str, cluster: Cluster | str
) -> dict[str, str]:
    """Both as a request names them; documents are stored first."""
    if isinstance(graph, ModelGraph):
        graph = GraphCalls(connection).post(graph).id
    if isinstance(cluster, Cluster):
        cluster = ClusterCalls(connection).post(cluster).id
    return {"graph": graph, "cluster": cluster}


@dataclass(frozen=True, slots=True)
class StrategyCalls:
    connection: ServiceConnection

    def get(self, strategy_id: str) -> Strategy:
        """One that some tuning proposed."""
        answer = self.connection.send("GET", f"/v1/strategies/{strategy_id}")
        return from_json(Strategy, answer.content)


@dataclass(frozen=True, slots=True)
class SimulatorCalls:
    connection: ServiceConnection

    def list(self, *, limit: int | None = LISTED, cursor: str | None = None) -> Simulators:
        """limit: None lists all."""
        return self.connection.listed("/v1/simulators", Simulators, limit, cursor)

    def put(self, name: str, card: bytes, weights: bytes) -> TrainedSimulator:
        """Store a checkpoint: the contents of its .json and .safetensors."""
        files = {"card": card, "weights": weights}
        answer = self.connection.send("PUT", f"/v1/simulators/{name}", files=files)
        return self.connection.parsed(answer, TrainedSimulator)

    def card(self, name: str) -> dict[str, Any]:
        card: dict[str, Any] = self.connection.send("GET", f"/v1/simulators/{name}").json()
        return card

    def weights(self, name: str) -> bytes:
        return self.connection.send("GET", f"/v1/simulators/{name}/weights").content

    def delete(self, name: str) -> None:
        self.connection.send("DELETE", f"/v1/simulators/{name}", repeatable=False)

    def versions(
        self, *, limit: int | None = LISTED, cursor: str | None = None
    ) -> SimulatorVersions:
        """Of the simulator that the service trains, the newest first, and which is in use."""
        path = "/v1/simulators/versions"
        return self.connection.listed(path, SimulatorVersions, limit, cursor)

    def promote(self, number: int) -> SimulatorVersions:
        """Use this version from now on; 0 is the bundled one."""
        path = f"/v1/simulators/versions/{number}/promote"
        return self.connection.post(path, SimulatorVersions)

    def train(self, *, seed: int = 0) -> SimulatorTraining:
        """Ask for the next version; one that waits already is answered."""
        path, query = "/v1/simulators/trainings", {"seed": seed}
        return self.connection.post(path, SimulatorTraining, params=query)

    def trainings(
        self, *, limit: int | None = LISTED, cursor: str | None = None
    ) -> SimulatorTrainings:
        """The newest first."""
        path = "/v1/simulators/trainings"
        return self.connection.listed(path, SimulatorTrainings, limit, cursor)

    def training(self, training_id: str) -> SimulatorTraining:
        return self.connection.get(f"/v1/simulators/trainings/{training_id}", SimulatorTraining)


TableKind = Literal["csv", "jsonl", "parquet", "zip"]


class RuntimeOptions(TypedDict, total=False):
    """Only trials of these. since, until: seconds since 1970, as `measured_at`."""

    domain: str
    tuning: str
    graph: str
    cluster: str
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class RuntimeCalls:
    connection: ServiceConnection

    def save(self, path: str | Path, **only: Unpack[RuntimeOptions]) -> None:
        """Write the table whole or not at all, in the format that the name ends in: .csv, .jsonl,
        .parquet, or .zip for what `autosync simulator train` reads.

        Raises:
            InvalidInput: it ends otherwise. ServiceError: the service refused.
            ServiceUnreachable: it does not answer, or stopped in the middle.
        """
        path = Path(path)
        kind = path.suffix.removeprefix(".")
        if kind not in get_args(TableKind):
            raise InvalidInput(
                f"{path.name!r} ends in no format of runtimes.",
                thing="path",
                value=str(path),
                remedy=f"Formats are .{', .'.join(get_args(TableKind))}.",
            )
        with replaced_atomically(path) as draft, draft.open("wb") as file:
            for part in self._parts(f"/v1/runtimes.{kind}", only):
                file.write(part)

    def rows(self, **only: Unpack[RuntimeOptions]) -> Iterator[dict[str, Any]]:
        """Each trial, as it is read.

        Raises:
            ServiceError: the service refused. ServiceUnreachable: it does not answer, or stopped in
                the middle.
        """
        rest = b""
        for part in self._parts("/v1/runtimes.jsonl", only):
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                yield json.loads(line)

    def _parts(self, path: str, only: RuntimeOptions) -> Iterator[bytes]:
        try:
            with self.connection.streamed(path, params=given(only)) as response:
                yield from response.iter_bytes()
        except httpx.TransportError as error:
            raise unreachable(self.connection.address, error) from error


@dataclass(frozen=True, slots=True)
class KeyCalls:
    connection: ServiceConnection

    def list(self, *, limit: int | None = LISTED, cursor: str | None = None) -> ApiKeys:
        """The newest first, with those that let nobody in any more. limit: None lists all."""
        return self.connection.listed("/v1/keys", ApiKeys, limit, cursor)

    def add(self, name: str, scope: KeyScope, days: int | None = None) -> MadeKey:
        """days: after which it ends; None: never. The answer's `key` is shown once."""
        body = {"name": name, "scope": scope, "days": days}
        return self.connection.post("/v1/keys", MadeKey, json=body)

    def revoke(self, key_id: str) -> ApiKey:
        """From now on it lets nobody in, nor do the browsers that logged in with it."""
        return self.connection.post(f"/v1/keys/{key_id}/revoke", ApiKey, repeatable=True)
