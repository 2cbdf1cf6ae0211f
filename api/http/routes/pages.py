"""The dashboard's home: the list of tunings, the form that starts one, and the log-in."""

import hashlib
import uuid
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy.orm import Session

from autosync.api.db.tables import STATES
from autosync.api.engine.job_queue import places
from autosync.api.engine.registry import SIMULATORS
from autosync.api.http.access.access_rules import NotAuthorized
from autosync.api.http.access.authentication import Authentication
from autosync.api.http.access.browser import (
    check_form_token,
    local_address,
    send_session,
    take_session,
)
from autosync.api.http.dependencies import ClientName, Cursor, DatabaseDep, LimitsDep, Reading
from autosync.api.http.page_templates import show
from autosync.api.http.uploads import start_tuning
from autosync.api.spec import TuningSpec, checked
from autosync.api.views import documents, reports, service, simulators
from autosync.api.views.dashboard.tuning_comparison import compared_tunings
from autosync.api.views.dashboard.tuning_form import asked_like, form_of_tuning
from autosync.api.views.glossary import glossary
from autosync.api.views.reports import TuningFilter
from autosync.api.views.schemas import Simulators
from autosync.api.views.verdict import caveats_of
from autosync.errors import AutosyncError
from autosync.optimizers import OPTIMIZERS
from autosync.search.space import SPACES_IN_WORDS

ON_A_PAGE = 25
NEWEST = 50
"""Stored models and clusters that the form offers."""
ORDERS = {
    "-created": "newest first",
    "created": "oldest first",
    "-speedup": "most speed-up first",
    "speedup": "least speed-up first",
    "best_seconds": "shortest step first",
    "-best_seconds": "longest step first",
    "model": "model, A to Z",
    "-model": "model, Z to A",
    "cluster": "cluster, A to Z",
    "-cluster": "cluster, Z to A",
    "state": "state, A to Z",
    "-state": "state, Z to A",
}
"""Of each column the first is what a click on its heading asks for, and then the other one."""
SCALES = (
    ("", "automatic"),
    ("1", "1 (all bytes)"),
    *((str(1 / 2**i), f"1/{2**i}") for i in range(1, 7)),
)
LIKE = "like"
"""The field of the form that names the tuning from which it was filled in: what has no field of its
own is taken from there, too."""
SENT_AS = "sent_as"
"""The field of the form whose text is another one each time that it is shown: what is sent twice
from one form, as by a double click, starts one tuning."""
FORM = {
    **dict.fromkeys((*TuningSpec.model_fields, LIKE), ""),
    "graph": "resnet50",
    "cluster": "example-4x1",
    "launcher": "auto",
    "simulator": "learned",
}
BUNDLED_SIMULATORS = Simulators(items=[], bundled=list(SIMULATORS), next=None)
"""Of a form in which nobody has looked for others."""

Words = Annotated[str, Query(max_length=200)]

LONGEST_KEY, LONGEST_ADDRESS = 1000, 8000
HOME = "/"

router = APIRouter(include_in_schema=False)
login_router = APIRouter(include_in_schema=False)
"""For who has no key yet."""


async def _filled(request: Request) -> dict[str, str]:
    """Fields of the form, empty where the default is meant."""
    form = await request.form()
    given = {name: form.get(name, "") for name in (*TuningSpec.model_fields, LIKE, SENT_AS)}
    return {name: value if isinstance(value, str) else "" for name, value in given.items()}


FilledForm = Annotated[dict[str, str], Depends(_filled)]


def _wanted(
    text: Words = "",
    state: Words = "",
    tag: Words = "",
    archived: bool = False,
    sort: Words = "-created",
) -> TuningFilter:
    return TuningFilter(text, state, tag, archived=archived, sort=sort)


Wanted = Annotated[TuningFilter, Depends(_wanted)]


@router.get("/")
def index(
    request: Request,
    session: Reading,
    wanted: Wanted,
    cursor: Cursor = None,
    graph: Words = "",
    cluster: Words = "",
    like: Words = "",
) -> Response:
    """graph, cluster: chosen in the form beforehand. like: the id of a tuning from which all
    fields of the form come."""
    chosen = {k: v for k, v in (("graph", graph), ("cluster", cluster)) if v}
    if like:
        chosen = {**form_of_tuning(session, like).fields, LIKE: like, **chosen}
    shown = _index(session, FORM | chosen, wanted, cursor, bool(chosen))
    return show(request, "home/index.html", shown)


@router.get("/fragments/tunings")
def tunings_fragment(
    request: Request, session: Reading, wanted: Wanted, cursor: Cursor = None
) -> Response:
    return show(request, "home/tunings.html", _tunings(session, wanted, cursor))


@router.get("/fragments/service")
def service_fragment(request: Request, session: Reading) -> Response:
    """The status bar of every page."""
    return show(request, "parts/service.html", {"service": service.service_activity(session)})


@router.get("/fragments/simulators")
def simulators_fragment(request: Request, session: Reading, simulator: Words = "") -> Response:
    """All that the form offers; asked for when somebody looks."""
    shown = {"simulators": simulators.simulators(session, None), "chosen": simulator}
    return show(request, "home/simulator_options.html", shown)


@router.post("/tunings")
def start(
    request: Request,
    database: DatabaseDep,
    limits: LimitsDep,
    client: ClientName,
    session: Reading,
    form: FilledForm,
) -> Response:
    try:
        given: dict[str, Any] = {name: value for name, value in form.items() if value}
        sent_as = given.pop(SENT_AS, "")
        if like := given.pop(LIKE, ""):
            given = asked_like(session, like, given)
        asked = checked(TuningSpec, given).model_dump_json(exclude_unset=True)
        same = f"{sent_as}\n{asked}".encode()
        key = hashlib.sha256(same).hexdigest() if sent_as else None
        tuning_id = start_tuning(database, asked.encode(), client, key, limits)
    except AutosyncError as error:
        shown = _index(session, form, TuningFilter(archived=False), None, True, error)
        return show(request, "home/index.html", shown, 422)
    return RedirectResponse(f"/tunings/{tuning_id}", 303)


@router.get("/compare")
def compare_tunings(
    request: Request, session: Reading, tuning: Annotated[list[Words] | None, Query()] = None
) -> Response:
    shown = {"compared": compared_tunings(session, tuning or [])}
    return show(request, "home/compare_tunings.html", shown)


@router.get("/glossary")
def glossary_page(request: Request) -> Response:
    return show(request, "glossary.html", {"sections": glossary()})


@router.get("/docs")
def docs(request: Request) -> Response:
    return show(request, "docs.html", {})


def listed_tunings(
    session: Session, wanted: TuningFilter, cursor: str | None = None
) -> dict[str, Any]:
    """What the table of tunings shows."""
    listed = reports.tunings(session, ON_A_PAGE, cursor, wanted)
    waiting = any(tuning.state == "queued" for tuning in listed.items)
    return {
        "listed": listed,
        "caveats": caveats_of(listed.items),
        "places": places(session) if waiting else {},
        "service": service.service_activity(session),
    }


def _tunings(session: Session, wanted: TuningFilter, cursor: str | None) -> dict[str, Any]:
    return {
        **listed_tunings(session, wanted, cursor),
        "wanted": wanted,
        "narrows": replace(wanted, sort="-created") != TuningFilter(archived=False),
        "cursor": cursor,
        "orders": ORDERS,
        "next_sort": next_sort,
        "states": STATES,
        "tags": reports.tags(session),
    }


def next_sort(wanted: TuningFilter, column: str) -> TuningFilter:
    """What a click on the column's heading asks for."""
    first, second = (name for name in ORDERS if name.removeprefix("-") == column)
    return replace(wanted, sort=second if wanted.sort == first else first)


def _index(
    session: Session,
    form: dict[str, Any],
    wanted: TuningFilter,
    cursor: str | None,
    start_open: bool,
    refused: AutosyncError | None = None,
) -> dict[str, Any]:
    return {
        **_tunings(session, wanted, cursor),
        "graphs": documents.graphs(session, NEWEST, chosen=form["graph"]),
        "clusters": documents.clusters(session, NEWEST, chosen=form["cluster"]),
        "simulators": BUNDLED_SIMULATORS,
        "scales": SCALES,
        "optimizers": OPTIMIZERS,
        "spaces": SPACES_IN_WORDS,
        "form": form,
        SENT_AS: uuid.uuid4().hex,
        "start_open": start_open,
        "refused": refused,
    }


async def _authentication(request: Request) -> Authentication:
    found: Authentication = request.app.state.authentication
    return found


AuthenticationDep = Annotated[Authentication, Depends(_authentication)]
Shown = Annotated[str, Form(max_length=LONGEST_KEY)]


@login_router.get("/login")
async def login_page(
    request: Request,
    authentication: AuthenticationDep,
    following: Annotated[str, Query(alias="next", max_length=LONGEST_ADDRESS)] = HOME,
) -> Response:
    if await authentication.is_open():
        return RedirectResponse(local_address(following), 303)
    return show(request, "login.html", {"next": local_address(following)})


@login_router.post("/login", dependencies=[Depends(check_form_token)])
async def log_in(
    request: Request,
    authentication: AuthenticationDep,
    key: Shown = "",
    following: Annotated[str, Form(alias="next", max_length=LONGEST_ADDRESS)] = HOME,
) -> Response:
    try:
        cookie = await authentication.log_in(request, key.strip())
    except NotAuthorized as error:
        return show(
            request, "login.html", {"next": local_address(following), "refused": error}, 401
        )
    response = RedirectResponse(local_address(following), 303)
    send_session(request, authentication.access, response, cookie)
    return response


@login_router.post("/logout", dependencies=[Depends(check_form_token)])
async def log_out(request: Request, authentication: AuthenticationDep) -> Response:
    await authentication.log_out(request)
    response = RedirectResponse("/login", 303)
    take_session(request, authentication.access, response)
    return response
