"""What every refusal of the REST API says, and a graph and clusters to send it."""

import json
from typing import Any

import httpx
from fastapi.testclient import TestClient

from autosync.cluster import Cluster
from autosync.documents import to_json
from autosync.graph import ModelGraph
from tests.domains import chain_graph, grid_cluster

YAML = """
name: two
nodes:
  - {address: 10.0.0.1, devices: [{type: v100}], bandwidth_gbps: 9.5}
  - {address: 10.0.0.2, devices: [{type: v100}], bandwidth_gbps: 9.5}
"""


def posted(
    client: httpx.Client | TestClient,
    graph: ModelGraph | None = None,
    cluster: Cluster | None = None,
) -> dict[str, Any]:
    """The ids of a graph and a cluster that are posted, as a request names them."""
    graph, cluster = graph or chain_graph(), cluster or grid_cluster()
    return {
        "graph": client.post("/v1/graphs", content=to_json(graph)).json()["id"],
        "cluster": client.post("/v1/clusters", content=to_json(cluster)).json()["id"],
    }


def refused(answer: Any, status: int, *parts: str) -> dict[str, Any]:
    """A problem that names the thing, the value and the way out."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["status"] == status
    for part in parts:
        assert part in json.dumps(problem, ensure_ascii=False), problem
    assert problem["thing"], problem
    assert problem["remedy"], problem
    return problem
