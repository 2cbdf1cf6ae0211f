"""Graphs and clusters, and the schemas of all documents."""

from typing import Any

from fastapi import APIRouter, Request, Response
from sqlalchemy import select

from autosync.api.db.document_store import found, keep_cluster, keep_graph
from autosync.api.db.tables import ClusterRow, GraphRow, StrategyRow
from autosync.api.http import dependencies, schemas
from autosync.api.http.openapi import DOCUMENTS, document_answer, posted, problems, schema_of
from autosync.cluster_file import bundled_clusters, parse_cluster
from autosync.documents import from_json
from autosync.errors import InvalidInput, NotFound
from autosync.graph import ModelGraph
from autosync.models import BUNDLED

router = APIRouter(prefix="/v1", tags=["documents"])
KEPT: dict[int | str, dict[str, Any]] = {
    200: {"model": schemas.Kept, "description": "It was here already."}
}


@router.post(
    "/graphs",
    status_code=201,
    responses={**KEPT, **problems(413, 422)},
    openapi_extra=posted("ModelGraph", "application/json"),
)
def post_graph(
    body: dependencies.Body,
    database: dependencies.DatabaseDep,
    request: Request,
    response: Response,
) -> schemas.Kept:
    """Keep a graph (`autosync import -o graph.json` writes one). Only data is taken: nothing in
    it is executed. The same graph posted twice is one."""
    graph = from_json(ModelGraph, body, source="graph")
    with database.writing() as session:
        key, new = keep_graph(session, graph)
    return _kept(request, response, key, graph.name, new)


@router.get("/graphs", responses=problems(422))
def get_graphs(
    session: dependencies.Reading, limit: dependencies.Limit = 100, offset: dependencies.Offset = 0
) -> schemas.Graphs:
    """Posted graphs, the newest first, and the bundled models."""
    query = select(GraphRow).order_by(GraphRow.created_at.desc(), GraphRow.id)
    rows = session.scalars(query.limit(limit).offset(offset))
    return schemas.Graphs(
        items=[schemas.GraphSummary.model_validate(row) for row in rows],
        bundled=[schemas.BundledModel.model_validate(spec) for spec in BUNDLED.values()],
    )


@router.get(
    "/graphs/{graph_id}",
    response_class=Response,
    responses={**document_answer("ModelGraph", "The graph."), **problems(404, 422)},
)
def get_graph(graph_id: dependencies.Id, session: dependencies.Reading) -> Response:
    return _document(found(session, GraphRow, graph_id, "graph").document)


@router.post(
    "/clusters",
    status_code=201,
    responses={**KEPT, **problems(413, 422)},
    openapi_extra=posted("Cluster", "application/json", "application/yaml"),
)
def post_cluster(
    body: dependencies.Body,
    database: dependencies.DatabaseDep,
    request: Request,
    response: Response,
) -> schemas.Kept:
    """Keep a cluster, as YAML or JSON."""
    cluster = parse_cluster(_text(body), "cluster")
    with database.writing() as session:
        key, new = keep_cluster(session, cluster)
    return _kept(request, response, key, cluster.name, new)


@router.get("/clusters", responses=problems(422))
def get_clusters(
    session: dependencies.Reading, limit: dependencies.Limit = 100, offset: dependencies.Offset = 0
) -> schemas.Clusters:
    """Posted clusters, the newest first, and the bundled ones."""
    query = select(ClusterRow).order_by(ClusterRow.created_at.desc(), ClusterRow.id)
    rows = session.scalars(query.limit(limit).offset(offset))
    return schemas.Clusters(
        items=[schemas.ClusterSummary.model_validate(row) for row in rows],
        bundled=list(bundled_clusters()),
    )


@router.get(
    "/clusters/{cluster_id}",
    response_class=Response,
    responses={**document_answer("Cluster", "The cluster."), **problems(404, 422)},
)
def get_cluster(cluster_id: dependencies.Id, session: dependencies.Reading) -> Response:
    return _document(found(session, ClusterRow, cluster_id, "cluster").document)


@router.get(
    "/strategies/{strategy_id}",
    response_class=Response,
    responses={**document_answer("Strategy", "The strategy."), **problems(404, 422)},
)
def get_strategy(strategy_id: dependencies.Id, session: dependencies.Reading) -> Response:
    """A strategy that some tuning proposed."""
    query = select(StrategyRow.document).where(StrategyRow.strategy_id == strategy_id)
    document = session.scalars(query).first() if strategy_id.isalnum() else None
    if document is None:
        raise NotFound(
            f"there is no strategy {strategy_id!r}.",
            thing="strategy",
            value=strategy_id,
            remedy="GET /v1/tunings/{id}/strategies lists those of a tuning.",
        )
    return _document(document)


@router.get("/schemas")
def get_schemas() -> dict[str, str]:
    """Where the JSON Schema of each document is."""
    return {name: f"/v1/schemas/{name}" for name in DOCUMENTS}


@router.get("/schemas/{name}", responses=problems(404, 422))
def get_schema(name: dependencies.Id) -> dict[str, Any]:
    if name not in DOCUMENTS:
        raise NotFound(
            f"there is no document {name!r}.",
            thing="schema",
            value=name,
            remedy=f"There are: {', '.join(DOCUMENTS)}.",
        )
    return schema_of(name)


def _kept(request: Request, response: Response, key: str, name: str, new: bool) -> schemas.Kept:
    location = f"{request.url.path.rstrip('/')}/{key}"
    response.status_code = 201 if new else 200
    response.headers["Location"] = location
    return schemas.Kept(id=key, name=name, location=location)


def _document(text: str) -> Response:
    return Response(text, media_type="application/json")


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"the body is no UTF-8 text: {error.reason} at byte {error.start}.",
            thing="body",
            remedy="Send the cluster as YAML or JSON.",
        ) from None
