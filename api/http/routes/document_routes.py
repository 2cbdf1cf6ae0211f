"""Graphs and clusters, and the schemas of all documents."""

from typing import Any

from fastapi import APIRouter, Response

from autosync.api.db.lookup import found
from autosync.api.http.dependencies import Body, ClientName, Id, Limit, Offset, Reading, UploadsDep
from autosync.api.http.openapi import DOCUMENTS, document_answer, posted, refusals, schema_of
from autosync.api.http.schemas import StoredDocument
from autosync.api.http.upload_storage import StoredRow
from autosync.api.views import stored_documents
from autosync.api.views.document_schemas import Clusters, Graphs

router = APIRouter(prefix="/v1", tags=["documents"])
STORED: dict[int | str, dict[str, Any]] = {
    200: {"model": StoredDocument, "description": "It was here already."},
    **refusals(413, 422, 429),
}


@router.post(
    "/graphs",
    status_code=201,
    responses=STORED,
    openapi_extra=posted("ModelGraph", "application/json"),
)
def post_graph(
    body: Body, uploads: UploadsDep, client: ClientName, response: Response
) -> StoredDocument:
    """Store a graph (`autosync import -o graph.json` writes one). Only data is taken: nothing in
    it is executed. The same graph posted twice is one."""
    return _stored(response, "/v1/graphs", uploads.graph(body, client))


@router.get("/graphs", responses=refusals(422))
def get_graphs(session: Reading, limit: Limit = 100, offset: Offset = 0) -> Graphs:
    """Posted graphs, the newest first, and the bundled models."""
    return stored_documents.graphs(session, limit, offset)


@router.get(
    "/graphs/{graph_id}",
    response_class=Response,
    responses={**document_answer("ModelGraph", "The graph."), **refusals(404, 422)},
)
def get_graph(graph_id: Id, session: Reading) -> Response:
    return _document(stored_documents.graph_document(session, graph_id))


@router.post(
    "/clusters",
    status_code=201,
    responses=STORED,
    openapi_extra=posted("Cluster", "application/json", "application/yaml"),
)
def post_cluster(
    body: Body, uploads: UploadsDep, client: ClientName, response: Response
) -> StoredDocument:
    """Store a cluster, as YAML or JSON."""
    return _stored(response, "/v1/clusters", uploads.cluster(body, client))


@router.get("/clusters", responses=refusals(422))
def get_clusters(session: Reading, limit: Limit = 100, offset: Offset = 0) -> Clusters:
    """Posted clusters, the newest first, and the bundled ones."""
    return stored_documents.clusters(session, limit, offset)


@router.get(
    "/clusters/{cluster_id}",
    response_class=Response,
    responses={**document_answer("Cluster", "The cluster."), **refusals(404, 422)},
)
def get_cluster(cluster_id: Id, session: Reading) -> Response:
    return _document(stored_documents.cluster_document(session, cluster_id))


@router.get(
    "/strategies/{strategy_id}",
    response_class=Response,
    responses={**document_answer("Strategy", "The strategy."), **refusals(404, 422)},
)
def get_strategy(strategy_id: Id, session: Reading) -> Response:
    """A strategy that some tuning proposed."""
    return _document(stored_documents.strategy_document(session, strategy_id))


@router.get("/schemas")
def get_schemas() -> dict[str, str]:
    """Where the JSON Schema of each document is."""
    return {name: f"/v1/schemas/{name}" for name in DOCUMENTS}


@router.get("/schemas/{name}", responses=refusals(404, 422))
def get_schema(name: Id) -> dict[str, Any]:
    known = name if name in DOCUMENTS else None
    remedy = f"There are: {', '.join(DOCUMENTS)}."
    return schema_of(found(known, "schema", name, remedy))


def _stored(response: Response, path: str, row: StoredRow) -> StoredDocument:
    location = f"{path}/{row.id}"
    response.status_code = 201 if row.new else 200
    response.headers["Location"] = location
    return StoredDocument(id=row.id, name=row.name, location=location)


def _document(text: str) -> Response:
    return Response(text, media_type="application/json")
