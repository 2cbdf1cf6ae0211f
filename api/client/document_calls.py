"""Graphs, clusters and strategies."""

from dataclasses import dataclass

from autosync.api.client.service_connection import ServiceConnection
from autosync.api.http.schemas import StoredDocument
from autosync.api.views.document_schemas import Clusters, Graphs
from autosync.cluster import Cluster
from autosync.documents import from_json, to_json
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

    def get(self, cluster_id: str) -> Cluster:
        answer = self.connection.send("GET", f"/v1/clusters/{cluster_id}")
        return from_json(Cluster, answer.content)


@dataclass(frozen=True, slots=True)
class StrategyCalls:
    connection: ServiceConnection

    def get(self, strategy_id: str) -> Strategy:
        """One that some tuning proposed."""
        answer = self.connection.send("GET", f"/v1/strategies/{strategy_id}")
        return from_json(Strategy, answer.content)
