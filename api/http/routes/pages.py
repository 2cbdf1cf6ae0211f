"""The dashboard: HTML pages and the fragments that keep them current."""

from datetime import UTC, datetime
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.templating import Jinja2Templates
from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from autosync.api.db.tables import ClusterRow, GraphRow
from autosync.api.engine import job_queue
from autosync.api.engine.registry import SIMULATORS
from autosync.api.engine.simulator_store import list_simulators
from autosync.api.engine.submission import submit
from autosync.api.http import dependencies, schemas
from autosync.api.views import reports
from autosync.cluster_file import bundled_clusters
from autosync.errors import AutosyncError, InvalidInput
from autosync.models import BUNDLED

TEMPLATES = Path(__file__).parents[1] / "templates"
NEWEST = 50
SCALES = (
    ("", "automatic"),
    ("1", "1 (all bytes)"),
    *((str(1 / 2**i), f"1/{2**i}") for i in range(1, 7)),
)
FORM = {"graph": "resnet50", "cluster": "example-4x1", "launcher": "auto"}

router = APIRouter(include_in_schema=False)


def _templates() -> Jinja2Templates:
    templates = Jinja2Templates(directory=TEMPLATES)
    templates.env.globals["version"] = version("autosync")
    templates.env.filters |= {"ms": _ms, "times": _times, "ago": _ago, "fraction": _fraction}
    return templates


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    value = seconds * 1e3
    return (
        f"{value:.2f} ms"
        if value < 10
        else f"{value:.1f} ms"
        if value < 1000
        else f"{value:,.0f} ms"
    )


def _times(ratio: float) -> str:
    return f"{ratio:.2f}×"


def _fraction(scale: float) -> str:
    return str(Fraction(scale).limit_denominator(1024))


def _ago(moment: datetime) -> str:
    seconds = (datetime.now(UTC) - moment).total_seconds()
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {name} ago"
    return "just now"


TEMPLATE = _templates()


def error_page(request: Request, problem: dict[str, Any]) -> Response:
    return TEMPLATE.TemplateResponse(
        request, "error.html", {"problem": problem}, status_code=problem["status"]
    )


@router.get("/")
def index(request: Request, session: dependencies.Reading) -> Response:
    return _index(request, session, FORM)


@router.get("/fragments/tunings")
def tunings_fragment(request: Request, session: dependencies.Reading) -> Response:
    shown = reports.tunings(session, NEWEST, 0)
    return TEMPLATE.TemplateResponse(request, "tunings.html", {"tunings": shown})


@router.post("/tunings")
def start(
    request: Request,
    database: dependencies.DatabaseDep,
    session: dependencies.Reading,
    form: Annotated[schemas.TuningForm, Form()],
) -> Response:
    try:
        tuning_id = submit(database, _request_of(form))
    except AutosyncError as error:
        return _index(request, session, form.model_dump(), error)
    return RedirectResponse(f"/tunings/{tuning_id}", 303)


@router.get("/tunings/{tuning_id}")
def tuning_page(
    tuning_id: dependencies.Id, request: Request, session: dependencies.Reading
) -> Response:
    return TEMPLATE.TemplateResponse(request, "tuning.html", _tuning(session, tuning_id))


@router.get("/tunings/{tuning_id}/live")
def live_fragment(
    tuning_id: dependencies.Id, request: Request, session: dependencies.Reading
) -> Response:
    return TEMPLATE.TemplateResponse(request, "status.html", _tuning(session, tuning_id))


@router.get("/tunings/{tuning_id}/ranked")
def ranked_fragment(
    tuning_id: dependencies.Id, request: Request, session: dependencies.Reading
) -> Response:
    return TEMPLATE.TemplateResponse(request, "ranked.html", _tuning(session, tuning_id))


@router.post("/tunings/{tuning_id}/cancel")
def cancel(tuning_id: dependencies.Id, database: dependencies.DatabaseDep) -> Response:
    job_queue.cancel(database, tuning_id)
    return RedirectResponse(f"/tunings/{tuning_id}", 303)


@router.get("/docs")
def docs(request: Request) -> Response:
    return TEMPLATE.TemplateResponse(request, "docs.html")


def _tuning(session: Session, tuning_id: str) -> dict[str, Any]:
    ranked = reports.ranked_strategies(session, tuning_id)
    ddp = next((row.step_seconds for row in ranked.items if row.is_ddp), None)
    return {"tuning": reports.tuning(session, tuning_id), "ranked": ranked, "ddp_seconds": ddp}


def _index(
    request: Request,
    session: Session,
    form: dict[str, Any],
    refused: AutosyncError | None = None,
) -> Response:
    context = {
        "tunings": reports.tunings(session, NEWEST, 0),
        "models": BUNDLED.values(),
        "graphs": session.scalars(select(GraphRow).limit(NEWEST)).all(),
        "presets": bundled_clusters(),
        "clusters": session.scalars(select(ClusterRow).limit(NEWEST)).all(),
        "simulators": SIMULATORS,
        "trained": list_simulators(session, NEWEST),
        "scales": SCALES,
        "form": form,
        "refused": refused,
    }
    return TEMPLATE.TemplateResponse(
        request, "index.html", context, status_code=422 if refused else 200
    )


def _request_of(form: schemas.TuningForm) -> schemas.TuningBody:
    """Empty fields take their defaults."""
    given = {name: value for name, value in form.model_dump().items() if value != ""}
    try:
        return schemas.TuningBody.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InvalidInput(
            f"{name}: {first['msg']}, got {first['input']!r}.", thing=name, value=first["input"]
        ) from None
