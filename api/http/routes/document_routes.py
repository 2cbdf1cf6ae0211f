"""Graphs and clusters, and the schemas of all documents."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from autosync.api.db.lookup import found
from autosync.api.http.dependencies import (
    Body,
    Cursor,
    DatabaseDep,
    Id,
    Limit,
    LimitsDep,
    Reading,
    sort_of,
)
from autosync.api.http.entity_tags import ASK_AGAIN, FOREVER, UNCHANGED, SeenTags, tagged
from autosync.api.http.openapi import (
    DOCUMENTS,
    document_answer,
    posted,
    posted_text,
    refusals,
    schema_of,
)
from autosync.api.http.uploads import StoredRow, store_calibrated, store_cluster, store_graph
from autosync.api.views import documents
from autosync.api.views.schemas import CalibratedCluster, Clusters, Graphs, StoredDocument
from autosync.cluster.cluster_file import bundled_clusters
from autosync.cluster.collective_curve import CollectiveOperation
from autosync.interop.nccl_tests import Stated
from autosync.models import is_bundled

router = APIRouter(prefix="/v1", tags=["documents"])
GraphSort = Annotated[str, sort_of(documents.GRAPH_SORTS)]
ClusterSort = Annotated[str, sort_of(documents.CLUSTER_SORTS)]
STORED: dict[int | str, dict[str, Any]] = {
    200: {"model": StoredDocument, "description": "It was here already."},
    **refusals(413),
}

CALIBRATED: dict[int | str, dict[str, Any]] = {
    200: {"model": CalibratedCluster, "description": "It was here already."},
    **refusals(404, 409, 413),
}


def _stated_log(
    operation: Annotated[
        CollectiveOperation | None,
        Query(description="Which collective it is, where the log does not say."),
    ] = None,
    ranks: Annotated[
        int | None, Query(ge=2, description="How many ranks, where the log lists none.")
    ] = None,
    nodes: Annotated[
        int | None, Query(ge=1, description="On how many hosts, where the log lists none.")
    ] = None,
) -> Stated:
    return Stated(operation, ranks, nodes)


StatedLog = Annotated[Stated, Depends(_stated_log)]


@router.post(
    "/graphs",
    status_code=201,
    responses=STORED,
    openapi_extra=posted("ModelGraph", "application/json"),
)
def post_graph(
    body: Body, database: DatabaseDep, limits: LimitsDep, request: Request, response: Response
) -> StoredDocument:
    """Store a graph (`autosync import -o graph.json` writes one). Only data is taken: nothing in
    it is executed. The same graph posted twice is one."""
    return _stored(request, response, "/v1/graphs", store_graph(database, body, limits))


@router.get("/graphs")
def get_graphs(
    session: Reading, limit: Limit = 100, cursor: Cursor = None, sort: GraphSort = "-created"
) -> Graphs:
    """Posted graphs, and the bundled models."""
    return documents.graphs(session, limit, cursor, sort)


@router.get(
    "/graphs/{graph_id}",
    response_class=Response,
    responses={**document_answer("ModelGraph", "The graph."), **UNCHANGED, **refusals(404)},
)
def get_graph(graph_id: Id, session: Reading, seen: SeenTags = None) -> Response:
    """A posted graph by its id, or a bundled one by its name."""
    text = documents.graph_document(session, graph_id)
    return _document(text, seen, bundled=is_bundled(graph_id))


@router.post(
    "/clusters",
    status_code=201,
    responses=STORED,
    openapi_extra=posted("Cluster", "application/json", "application/yaml"),
)
def post_cluster(
    body: Body, database: DatabaseDep, limits: LimitsDep, request: Request, response: Response
) -> StoredDocument:
    """Store a cluster, as YAML or JSON."""
    return _stored(request, response, "/v1/clusters", store_cluster(database, body, limits))


@router.post(
    "/clusters/{cluster_id}/calibrate",
    status_code=201,
    responses=CALIBRATED,
    openapi_extra=posted_text("What all_reduce_perf, all_gather_perf and their like printed."),
)
def post_log(
    cluster_id: Id,
    body: Body,
    database: DatabaseDep,
    limits: LimitsDep,
    request: Request,
    response: Response,
    stated: StatedLog,
) -> CalibratedCluster:
    """Store the cluster with what a log of nccl-tests measured, under an id of its own. The log is
    parsed as text; nothing in it is executed."""
    row, found = store_calibrated(database, cluster_id, body, stated, limits)
    return CalibratedCluster(
        **_stored(request, response, "/v1/clusters", row).model_dump(),
        curves=found.curves,
        warnings=found.warnings,
    )


@router.get("/clusters")
def get_clusters(
    session: Reading, limit: Limit = 100, cursor: Cursor = None, sort: ClusterSort = "-created"
) -> Clusters:
    """Posted clusters, and the bundled ones."""
    return documents.clusters(session, limit, cursor, sort)


@router.get(
    "/clusters/{cluster_id}",
    response_class=Response,
    responses={**document_answer("Cluster", "The cluster."), **UNCHANGED, **refusals(404)},
)
def get_cluster(cluster_id: Id, session: Reading, seen: SeenTags = None) -> Response:
    """A posted cluster by its id, or a bundled one by its name."""
    text = documents.cluster_document(session, cluster_id)
    return _document(text, seen, bundled=cluster_id in bundled_clusters())


@router.get(
    "/strategies/{strategy_id}",
    response_class=Response,
    responses={**document_answer("Strategy", "The strategy."), **UNCHANGED, **refusals(404)},
)
def get_strategy(strategy_id: Id, session: Reading, seen: SeenTags = None) -> Response:
    """A strategy that some tuning proposed."""
    return _document(documents.strategy_document(session, strategy_id), seen)


@router.get("/schemas")
def get_schemas(request: Request) -> dict[str, str]:
    """Where the JSON Schema of each document is."""
    return {name: f"{request.app.state.root_path}/v1/schemas/{name}" for name in DOCUMENTS}


@router.get("/schemas/{name}", responses=refusals(404))
def get_schema(name: Id) -> dict[str, Any]:
    known = name if name in DOCUMENTS else None
    remedy = f"There are: {', '.join(DOCUMENTS)}."
    return schema_of(found(known, "schema", name, remedy))


def _stored(request: Request, response: Response, path: str, row: StoredRow) -> StoredDocument:
    location = f"{request.app.state.root_path}{path}/{row.id}"
    response.status_code = 201 if row.new else 200
    response.headers["Location"] = location
    return StoredDocument(id=row.id, name=row.name, location=location)


def _document(text: str, seen: str | None, *, bundled: bool = False) -> Response:
    """bundled: by a name, which another version may give to another document."""
    return tagged(lambda: text, seen, cache=ASK_AGAIN if bundled else FOREVER)
