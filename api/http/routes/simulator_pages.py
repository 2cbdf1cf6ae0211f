"""Pages of the trained simulators: the versions, and each one's card."""

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy.orm import Session

from autosync.api.engine.job_queue import enqueue_training
from autosync.api.engine.simulator_store import promote
from autosync.api.http.access.guard import NEEDS_ADMIN
from autosync.api.http.charts.chart import Chart
from autosync.api.http.charts.version_chart import version_chart
from autosync.api.http.dependencies import Cursor, DatabaseDep, Id, Number, Reading
from autosync.api.http.page_templates import show
from autosync.api.views import simulator_versions_view, stored_documents
from autosync.api.views.dashboard.simulator_account import BUNDLED_NAME, simulator_account
from autosync.api.views.dashboard.tuning_list import TuningFilter, tuning_list

ON_A_PAGE = 50
LISTED = 500
"""Simulators under names of their own."""
CHARTED = 60
"""Versions of the chart, the newest."""

router = APIRouter(prefix="/simulators", include_in_schema=False)


@router.get("")
def simulators_page(request: Request, session: Reading, cursor: Cursor = None) -> Response:
    shown = {
        "versions": simulator_versions_view.simulator_versions(session, ON_A_PAGE, cursor),
        "bundled_name": BUNDLED_NAME,
        "named": stored_documents.named_simulators(session, LISTED),
        "trainings": simulator_versions_view.simulator_trainings(session, ON_A_PAGE),
        "charts": _charts(session, None),
    }
    return show(request, "home/simulators.html", shown)


@router.get("/{name}")
def simulator_page(name: Id, request: Request, session: Reading) -> Response:
    account = simulator_account(session, name)
    shown: dict[str, Any] = {
        "simulator": account,
        "charts": [] if account.number is None else _charts(session, account.number),
        "listed": tuning_list(session, TuningFilter(simulator=name)),
    }
    return show(request, "documents/simulator.html", shown)


@router.post("/trainings", dependencies=[NEEDS_ADMIN])
def train(database: DatabaseDep) -> Response:
    with database.writing() as session:
        enqueue_training(session)
    return RedirectResponse("/simulators", 303)


@router.post("/{number}/promote", dependencies=[NEEDS_ADMIN])
def use_version(number: Number, database: DatabaseDep) -> Response:
    promote(database, number)
    return RedirectResponse("/simulators", 303)


def _charts(session: Session, shown: int | None) -> list[Chart]:
    """None before the first version."""
    known = simulator_versions_view.simulator_versions(session, CHARTED)
    versions = list(reversed(known.items))
    return [version_chart(versions, known.in_use, shown)] if versions else []
