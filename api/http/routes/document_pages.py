"""Pages of models, clusters and trained simulators, and the forms that take their files."""

from dataclasses import replace
from itertools import groupby
from typing import Annotated, Any

from fastapi import APIRouter, File, Form, Query, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy.orm import Session

from autosync.api.engine.job_queue import enqueue_training
from autosync.api.engine.simulator_store import promote
from autosync.api.http.access.guard import NEEDS_ADMIN
from autosync.api.http.dependencies import (
    Cursor,
    DatabaseDep,
    Id,
    LimitsDep,
    Number,
    Reading,
)
from autosync.api.http.named_documents import cluster_named
from autosync.api.http.page_templates import show
from autosync.api.http.routes.pages import listed_tunings
from autosync.api.http.uploads import store_calibrated, store_cluster, store_graph
from autosync.api.views import documents, simulators
from autosync.api.views.charts import Chart, OperationCost, model_chart, version_chart
from autosync.api.views.dashboard.cluster_list import grouped_clusters, stored_clusters
from autosync.api.views.dashboard.measured_models import measured_models
from autosync.api.views.reports import TuningFilter
from autosync.cluster import Cluster, Node
from autosync.errors import AutosyncError
from autosync.interop.nccl_tests import Stated

ON_A_PAGE = 50
LISTED = 500
"""Simulators under names of their own."""
CHARTED = 60
"""Versions of the chart, the newest."""
Words = Annotated[str, Query(max_length=200)]
Place = Annotated[int, Query(ge=0, le=10**7)]
Upload = Annotated[bytes, File()]

router = APIRouter(include_in_schema=False)


@router.get("/models")
def models_page(request: Request, session: Reading, cursor: Cursor = None) -> Response:
    return show(request, "documents/models.html", _models(session, cursor))


@router.post("/models")
def upload_model(
    request: Request, database: DatabaseDep, limits: LimitsDep, session: Reading, document: Upload
) -> Response:
    try:
        stored = store_graph(database, document, limits)
    except AutosyncError as error:
        return show(request, "documents/models.html", _models(session, None, error), 422)
    return RedirectResponse(f"/models/{stored.id}", 303)


@router.get("/models/{name}")
def model_page(
    name: Id, request: Request, session: Reading, operations: Place = 0, variables: Place = 0
) -> Response:
    """operations, variables: places of the first ones that are shown."""
    account = documents.model_account(session, name)
    costs = [
        OperationCost(line.operation.name, line.share, line.gradient_bytes)
        for line in account.operations
    ]
    shown = {
        "name": name,
        "model": account,
        "chart": model_chart(costs, account.shares_of),
        "operations": account.operations[operations : operations + ON_A_PAGE],
        "variables": account.variables[variables : variables + ON_A_PAGE],
        "first_operation": operations,
        "first_variable": variables,
        "on_a_page": ON_A_PAGE,
        **listed_tunings(session, TuningFilter(graph_id=account.graph_id, archived=False)),
    }
    return show(request, "documents/model.html", shown)


@router.get("/clusters")
def clusters_page(
    request: Request, session: Reading, cursor: Cursor = None, text: Words = ""
) -> Response:
    return show(request, "documents/clusters.html", _clusters(session, cursor, text=text))


@router.post("/clusters")
def upload_cluster(
    request: Request, database: DatabaseDep, limits: LimitsDep, session: Reading, document: Upload
) -> Response:
    try:
        stored = store_cluster(database, document, limits)
    except AutosyncError as error:
        return show(request, "documents/clusters.html", _clusters(session, None, error), 422)
    return RedirectResponse(f"/clusters/{stored.id}", 303)


@router.post("/clusters/calibrate")
def upload_log(
    request: Request,
    database: DatabaseDep,
    limits: LimitsDep,
    session: Reading,
    document: Upload,
    cluster: Annotated[str, Form(max_length=200)],
) -> Response:
    """A log of nccl-tests, and the cluster that it is of. Where predictions do not follow the log,
    the answer is the page of the new cluster, which says why."""
    try:
        stored, found = store_calibrated(database, cluster, document, Stated(), limits)
    except AutosyncError as error:
        return show(request, "documents/cluster.html", _cluster(session, cluster, error), 422)
    if told := [*found.warnings, *(each.warning for each in found.curves if each.warning)]:
        shown = _cluster(session, stored.id) | {"told": told}
        return show(request, "documents/cluster.html", shown)
    return RedirectResponse(f"/clusters/{stored.id}", 303)


@router.get("/clusters/calibrate")
def log_form() -> Response:
    """The form of a log is on the page of its cluster; a reader comes here after a log-in."""
    return RedirectResponse("/clusters", 303)


@router.get("/clusters/{name}")
def cluster_page(name: Id, request: Request, session: Reading) -> Response:
    return show(request, "documents/cluster.html", _cluster(session, name))


def _cluster(session: Session, name: str, refused: AutosyncError | None = None) -> dict[str, Any]:
    cluster = cluster_named(session, name)
    return {
        "name": name,
        "cluster": cluster,
        "groups": cluster_groups(cluster),
        "refused": refused,
        **listed_tunings(session, TuningFilter(cluster_id=cluster.id, archived=False)),
    }


@router.get("/runtimes")
def runtimes_page(
    request: Request, session: Reading, cursor: Cursor = None, text: Words = ""
) -> Response:
    """What was measured, by model and cluster, with links to the tables themselves."""
    models, following = measured_models(session, ON_A_PAGE, cursor, text)
    shown = {"models": models, "next": following, "cursor": cursor, "text": text}
    return show(request, "documents/runtimes.html", shown)


@router.get("/simulators")
def simulators_page(request: Request, session: Reading, cursor: Cursor = None) -> Response:
    shown = {
        "versions": simulators.simulator_versions(session, ON_A_PAGE, cursor),
        "cursor": cursor,
        "bundled_name": simulators.BUNDLED_NAME,
        "named": simulators.simulators(session, LISTED, versions=False).items,
        "trainings": simulators.simulator_trainings(session, ON_A_PAGE),
        "charts": _charts(session, None),
    }
    return show(request, "home/simulators.html", shown)


@router.get("/simulators/trainings")
@router.get("/simulators/{number}/promote")
def version_forms() -> Response:
    """As of `log_form`."""
    return RedirectResponse("/simulators", 303)


@router.get("/simulators/{name}")
def simulator_page(name: Id, request: Request, session: Reading) -> Response:
    account = simulators.simulator_account(session, name)
    shown: dict[str, Any] = {
        "simulator": account,
        "charts": [] if account.number is None else _charts(session, account.number),
        **listed_tunings(session, TuningFilter(simulator=name, archived=False)),
    }
    return show(request, "documents/simulator.html", shown)


@router.post("/simulators/trainings", dependencies=[NEEDS_ADMIN])
def train(database: DatabaseDep) -> Response:
    with database.writing() as session:
        enqueue_training(session)
    return RedirectResponse("/simulators", 303)


@router.post("/simulators/{number}/promote", dependencies=[NEEDS_ADMIN])
def use_version(number: Number, database: DatabaseDep) -> Response:
    promote(database, number)
    return RedirectResponse("/simulators", 303)


def cluster_groups(cluster: Cluster) -> list[list[Node]]:
    """Its nodes; consecutive ones that differ in their address only are a group."""
    return [
        list(nodes) for _, nodes in groupby(cluster.nodes, lambda node: replace(node, address=""))
    ]


def _models(
    session: Session, cursor: str | None, refused: AutosyncError | None = None
) -> dict[str, Any]:
    graphs = documents.graphs(session, ON_A_PAGE, cursor)
    return {"graphs": graphs, "cursor": cursor, "refused": refused}


def _clusters(
    session: Session, cursor: str | None, refused: AutosyncError | None = None, text: str = ""
) -> dict[str, Any]:
    lines, following = stored_clusters(session, ON_A_PAGE, cursor, text)
    return {
        "stored": lines,
        "next": following,
        "groups": grouped_clusters(text),
        "text": text,
        "cursor": cursor,
        "refused": refused,
    }


def _charts(session: Session, shown: int | None) -> list[Chart]:
    """None before the first version."""
    known = simulators.simulator_versions(session, CHARTED)
    versions = list(reversed(known.items))
    return [version_chart(versions, known.in_use, shown)] if versions else []
