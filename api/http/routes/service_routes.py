"""Runtimes of all trials, what may be asked for, and whether the service is well."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from autosync.api.engine.service_limits import ServiceLimits
from autosync.api.http.dependencies import DatabaseDep, Reading, UploadsDep
from autosync.api.http.openapi import refusals
from autosync.api.views.exports import runtimes_csv, runtimes_parquet
from autosync.api.views.service_health import Health, Readiness, health, readiness

router = APIRouter(prefix="/v1", tags=["service"])
DomainId = Annotated[
    str | None, Query(pattern="^[0-9a-f]{32}$", description="Only trials of this domain.")
]
PARQUET = "application/vnd.apache.parquet"
CSV_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "CSV.", "content": {"text/csv": {}}},
    **refusals(422),
}
PARQUET_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "Parquet.", "content": {PARQUET: {}}},
    **refusals(422),
}


@router.get("/runtimes.csv", response_class=Response, responses=CSV_ANSWERS)
def get_runtimes_csv(database: DatabaseDep, domain: DomainId = None) -> StreamingResponse:
    """Every trial: its domain, scales, load and versions, and of its strategy the id and one line
    of words (column `strategy`). GET /v1/strategies/{strategy_id} is the strategy itself.

    Text that a spreadsheet would run as a formula begins with an apostrophe; Parquet has it as it
    is."""
    return StreamingResponse(runtimes_csv(database, domain), media_type="text/csv")


@router.get("/runtimes.parquet", response_class=Response, responses=PARQUET_ANSWERS)
def get_runtimes_parquet(database: DatabaseDep, domain: DomainId = None) -> Response:
    """The same as Parquet, with the timelines of those trials that recorded one."""
    headers = {"Content-Disposition": 'attachment; filename="runtimes.parquet"'}
    return Response(runtimes_parquet(database, domain), media_type=PARQUET, headers=headers)


NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {"model": Readiness, "description": "No worker lives: what is queued waits."}
}


@router.get("/limits")
def get_limits(uploads: UploadsDep) -> ServiceLimits:
    """What the operator of this service lets its clients ask for."""
    return uploads.limits


@router.get("/health")
def get_health(session: Reading) -> Health:
    """Answers when the database does."""
    return health(session)


@router.get("/ready", responses=NOT_READY)
def get_ready(session: Reading, response: Response) -> Readiness:
    """How many workers live, and how long the queue has waited for one."""
    found = readiness(session)
    response.status_code = 200 if found.workers else 503
    return found
