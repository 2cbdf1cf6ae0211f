"""Pages of models and clusters, and the forms that take their files."""

from typing import Annotated, Any

from fastapi import APIRouter, File, Query, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy.orm import Session

from autosync.api.http.charts.cluster_picture import cluster_picture
from autosync.api.http.charts.model_chart import OperationCost, model_chart
from autosync.api.http.dependencies import ClientName, Cursor, Id, Reading, UploadsDep
from autosync.api.http.named_documents import cluster_named
from autosync.api.http.page_templates import show
from autosync.api.views import stored_documents
from autosync.api.views.dashboard.model_views import model_account
from autosync.api.views.dashboard.tuning_list import TuningFilter, tuning_list
from autosync.errors import AutosyncError

ON_A_PAGE = 50
Page = Annotated[int, Query(ge=1, le=10**6)]
Upload = Annotated[bytes, File()]

router = APIRouter(include_in_schema=False)


@router.get("/models")
def models_page(request: Request, session: Reading, cursor: Cursor = None) -> Response:
    return show(request, "documents/models.html", _models(session, cursor))


@router.post("/models")
def upload_model(
    request: Request, uploads: UploadsDep, client: ClientName, session: Reading, document: Upload
) -> Response:
    try:
        stored = uploads.graph(document, client)
    except AutosyncError as error:
        return show(request, "documents/models.html", _models(session, None, error), 422)
    return RedirectResponse(f"/models/{stored.id}", 303)


@router.get("/models/{name}")
def model_page(
    name: Id, request: Request, session: Reading, operations: Page = 1, variables: Page = 1
) -> Response:
    account = model_account(session, name)
    costs = [
        OperationCost(line.operation.name, line.share, line.gradient_bytes)
        for line in account.operations
    ]
    shown = {
        "name": name,
        "model": account,
        "chart": model_chart(costs, account.shares_of),
        "operations": _part(account.operations, operations),
        "variables": _part(account.variables, variables),
        "operations_page": operations,
        "variables_page": variables,
        "operations_pages": _pages(len(account.operations)),
        "variables_pages": _pages(len(account.variables)),
        "listed": tuning_list(session, TuningFilter(graph_id=account.graph_id)),
    }
    return show(request, "documents/model.html", shown)


@router.get("/clusters")
def clusters_page(request: Request, session: Reading, cursor: Cursor = None) -> Response:
    return show(request, "documents/clusters.html", _clusters(session, cursor))


@router.post("/clusters")
def upload_cluster(
    request: Request, uploads: UploadsDep, client: ClientName, session: Reading, document: Upload
) -> Response:
    try:
        stored = uploads.cluster(document, client)
    except AutosyncError as error:
        return show(request, "documents/clusters.html", _clusters(session, None, error), 422)
    return RedirectResponse(f"/clusters/{stored.id}", 303)


@router.get("/clusters/{name}")
def cluster_page(name: Id, request: Request, session: Reading) -> Response:
    cluster = cluster_named(session, name)
    shown = {
        "name": name,
        "cluster": cluster,
        "picture": cluster_picture(cluster),
        "listed": tuning_list(session, TuningFilter(cluster_id=cluster.id)),
    }
    return show(request, "documents/cluster.html", shown)


def _models(
    session: Session, cursor: str | None, refused: AutosyncError | None = None
) -> dict[str, Any]:
    graphs = stored_documents.graphs(session, ON_A_PAGE, cursor)
    return {"graphs": graphs, "refused": refused}


def _clusters(
    session: Session, cursor: str | None, refused: AutosyncError | None = None
) -> dict[str, Any]:
    clusters = stored_documents.clusters(session, ON_A_PAGE, cursor)
    return {"clusters": clusters, "refused": refused}


def _part(lines: tuple[Any, ...], page: int) -> tuple[Any, ...]:
    return lines[(page - 1) * ON_A_PAGE : page * ON_A_PAGE]


def _pages(count: int) -> int:
    return max(1, -(-count // ON_A_PAGE))
