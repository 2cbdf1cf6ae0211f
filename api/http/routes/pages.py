"""The dashboard's home: tunings as one looks for them, and the form that starts one."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy.orm import Session

from autosync.api.db.tables import STATES
from autosync.api.engine.registry import SIMULATORS
from autosync.api.http.dependencies import ClientName, Reading, UploadsDep
from autosync.api.http.page_templates import show
from autosync.api.spec import TuningSpec, checked
from autosync.api.views import stored_documents
from autosync.api.views.dashboard.tuning_comparison import compared_tunings
from autosync.api.views.dashboard.tuning_list import NEWEST as NEWEST_FIRST
from autosync.api.views.dashboard.tuning_list import ORDERS, TuningFilter, tuning_list
from autosync.api.views.schemas import Simulators
from autosync.errors import AutosyncError
from autosync.optimizers import OPTIMIZERS

NEWEST = 50
SCALES = (
    ("", "automatic"),
    ("1", "1 (all bytes)"),
    *((str(1 / 2**i), f"1/{2**i}") for i in range(1, 7)),
)
FORM = {
    **dict.fromkeys(TuningSpec.model_fields, ""),
    "graph": "resnet50",
    "cluster": "example-4x1",
    "launcher": "auto",
    "simulator": "learned",
}
BUNDLED_SIMULATORS = Simulators(items=[], bundled=list(SIMULATORS), next=None)
"""Of a form in which nobody has looked for others."""

Words = Annotated[str, Query(max_length=200)]

router = APIRouter(include_in_schema=False)


async def _filled(request: Request) -> dict[str, str]:
    """Fields of the form, empty where the default is meant."""
    form = await request.form()
    given = {name: form.get(name, "") for name in TuningSpec.model_fields}
    return {name: value if isinstance(value, str) else "" for name, value in given.items()}


FilledForm = Annotated[dict[str, str], Depends(_filled)]


def _wanted(
    text: Words = "",
    state: Words = "",
    tag: Words = "",
    archived: bool = False,
    sort: Words = NEWEST_FIRST,
    page: Annotated[int, Query(ge=1, le=10**6)] = 1,
) -> TuningFilter:
    return TuningFilter(text, state, tag, archived=archived, sort=sort, page=page)


Wanted = Annotated[TuningFilter, Depends(_wanted)]


@router.get("/")
def index(
    request: Request, session: Reading, wanted: Wanted, graph: Words = "", cluster: Words = ""
) -> Response:
    """graph, cluster: chosen in the form beforehand."""
    chosen = {k: v for k, v in (("graph", graph), ("cluster", cluster)) if v}
    return show(request, "home/index.html", _index(session, FORM | chosen, wanted, bool(chosen)))


@router.get("/fragments/tunings")
def tunings_fragment(request: Request, session: Reading, wanted: Wanted) -> Response:
    return show(request, "home/tunings.html", _tunings(session, wanted))


@router.get("/fragments/simulators")
def simulators_fragment(request: Request, session: Reading, simulator: Words = "") -> Response:
    """All that the form offers; asked for when somebody looks."""
    shown = {"simulators": stored_documents.every_simulator(session), "chosen": simulator}
    return show(request, "home/simulator_options.html", shown)


@router.post("/tunings")
def start(
    request: Request, uploads: UploadsDep, client: ClientName, session: Reading, form: FilledForm
) -> Response:
    try:
        given = {name: value for name, value in form.items() if value}
        asked = checked(TuningSpec, given).model_dump_json(exclude_unset=True)
        tuning_id = uploads.tuning(asked.encode(), client)
    except AutosyncError as error:
        shown = _index(session, form, TuningFilter(), True, error)
        return show(request, "home/index.html", shown, 422)
    return RedirectResponse(f"/tunings/{tuning_id}", 303)


@router.get("/compare")
def compare_tunings(request: Request, session: Reading, left: Words, right: Words) -> Response:
    from autosync.api.http.tuning_charts import compared_convergence  # loads numba

    compared = compared_tunings(session, left, right)
    shown = {"compared": compared, "charts": compared_convergence(session, compared.tunings)}
    return show(request, "home/compare_tunings.html", shown)


@router.get("/docs")
def docs(request: Request) -> Response:
    return show(request, "docs.html", {})


def _tunings(session: Session, wanted: TuningFilter) -> dict[str, Any]:
    return {
        "listed": tuning_list(session, wanted),
        "wanted": wanted,
        "orders": ORDERS,
        "states": STATES,
    }


def _index(
    session: Session,
    form: dict[str, Any],
    wanted: TuningFilter,
    start_open: bool,
    refused: AutosyncError | None = None,
) -> dict[str, Any]:
    return {
        **_tunings(session, wanted),
        "graphs": stored_documents.offered_graphs(session, NEWEST, form["graph"]),
        "clusters": stored_documents.offered_clusters(session, NEWEST, form["cluster"]),
        "simulators": BUNDLED_SIMULATORS,
        "scales": SCALES,
        "optimizers": OPTIMIZERS,
        "form": form,
        "start_open": start_open,
        "refused": refused,
    }
