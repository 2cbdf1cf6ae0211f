"""The dashboard: HTML pages and the fragments that keep them current."""

from typing import Annotated, Any

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy.orm import Session

from autosync.api.engine import tuning_queue
from autosync.api.engine.simulator_versions import promote
from autosync.api.engine.training_queue import enqueue_training
from autosync.api.http.dependencies import (
    ClientName,
    DatabaseDep,
    Id,
    Number,
    Reading,
    UploadsDep,
)
from autosync.api.http.page_templates import show
from autosync.api.http.tuning_body import TuningForm
from autosync.api.views import reports, simulator_versions_view, stored_documents
from autosync.api.views.caveats import caveats_of
from autosync.errors import AutosyncError

NEWEST = 50
SCALES = (
    ("", "automatic"),
    ("1", "1 (all bytes)"),
    *((str(1 / 2**i), f"1/{2**i}") for i in range(1, 7)),
)
FORM = {
    "graph": "resnet50",
    "cluster": "example-4x1",
    "launcher": "auto",
    "simulator": "ensemble",
}

FilledForm = Annotated[TuningForm, Form()]

router = APIRouter(include_in_schema=False)


@router.get("/")
def index(request: Request, session: Reading) -> Response:
    return show(request, "index.html", _index(session, FORM))


@router.get("/fragments/tunings")
def tunings_fragment(request: Request, session: Reading) -> Response:
    return show(request, "tunings.html", _tunings(session))


@router.post("/tunings")
def start(
    request: Request, uploads: UploadsDep, client: ClientName, session: Reading, form: FilledForm
) -> Response:
    try:
        asked = form.body().model_dump_json(exclude_unset=True)
        tuning_id = uploads.tuning(asked.encode(), client)
    except AutosyncError as error:
        return show(request, "index.html", _index(session, form.model_dump(), error), 422)
    return RedirectResponse(f"/tunings/{tuning_id}", 303)


@router.get("/tunings/{tuning_id}")
def tuning_page(tuning_id: Id, request: Request, session: Reading) -> Response:
    return show(request, "tuning.html", _tuning(session, tuning_id))


@router.get("/tunings/{tuning_id}/live")
def live_fragment(tuning_id: Id, request: Request, session: Reading) -> Response:
    return show(request, "status.html", _tuning(session, tuning_id))


@router.get("/tunings/{tuning_id}/ranked")
def ranked_fragment(tuning_id: Id, request: Request, session: Reading) -> Response:
    return show(request, "ranked.html", _tuning(session, tuning_id))


@router.post("/tunings/{tuning_id}/cancel")
def cancel(tuning_id: Id, database: DatabaseDep) -> Response:
    tuning_queue.cancel(database, tuning_id)
    return RedirectResponse(f"/tunings/{tuning_id}", 303)


@router.get("/simulators")
def simulators_page(request: Request, session: Reading) -> Response:
    shown = {
        "versions": simulator_versions_view.simulator_versions(session),
        "trainings": simulator_versions_view.simulator_trainings(session, NEWEST),
    }
    return show(request, "simulators.html", shown)


@router.post("/simulators/trainings")
def train(database: DatabaseDep) -> Response:
    with database.writing() as session:
        enqueue_training(session)
    return RedirectResponse("/simulators", 303)


@router.post("/simulators/{number}/promote")
def use_version(number: Number, database: DatabaseDep) -> Response:
    promote(database, number)
    return RedirectResponse("/simulators", 303)


@router.get("/docs")
def docs(request: Request) -> Response:
    return show(request, "docs.html", {})


def _tuning(session: Session, tuning_id: str) -> dict[str, Any]:
    ranked = reports.ranked_strategies(session, tuning_id)
    tuning = reports.tuning(session, tuning_id)
    return {
        "tuning": tuning,
        "ranked": ranked,
        "ddp_seconds": next((row.step_seconds for row in ranked.items if row.is_ddp), None),
        "ran_on": reports.ran_on(session, tuning_id) or tuning.launcher,
        "caveats": caveats_of(session, [tuning])[tuning_id],
        "time_left": reports.time_left_words(session, tuning) if tuning.state == "running" else "",
    }


def _tunings(session: Session) -> dict[str, Any]:
    shown = reports.tunings(session, NEWEST, 0)
    return {"tunings": shown, "caveats": caveats_of(session, shown.items)}


def _index(
    session: Session, form: dict[str, Any], refused: AutosyncError | None = None
) -> dict[str, Any]:
    return {
        **_tunings(session),
        "graphs": stored_documents.graphs(session, NEWEST),
        "clusters": stored_documents.clusters(session, NEWEST),
        "simulators": stored_documents.simulators(session, NEWEST),
        "scales": SCALES,
        "form": form,
        "refused": refused,
    }
