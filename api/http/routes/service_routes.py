"""Runtimes of all trials, and whether the service is well."""

from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from sqlalchemy import func, select

from autosync.api.db.migrate import current_revision
from autosync.api.db.tables import ACTIVE, TuningRow
from autosync.api.http import dependencies, schemas
from autosync.api.http.openapi import problems
from autosync.api.views.exports import runtimes_csv, runtimes_parquet

router = APIRouter(prefix="/v1", tags=["service"])
Domain = Annotated[
    str | None, Query(pattern="^[0-9a-f]{32}$", description="Only trials of this domain.")
]


@router.get(
    "/runtimes.csv",
    response_class=Response,
    responses={200: {"description": "CSV.", "content": {"text/csv": {}}}, **problems(422)},
)
def get_runtimes_csv(
    database: dependencies.DatabaseDep, domain: Domain = None
) -> StreamingResponse:
    """Every trial with its domain, strategy, scales, load and versions."""
    return StreamingResponse(runtimes_csv(database, domain), media_type="text/csv")


@router.get(
    "/runtimes.parquet",
    response_class=Response,
    responses={
        200: {"description": "Parquet.", "content": {"application/vnd.apache.parquet": {}}},
        **problems(422),
    },
)
def get_runtimes_parquet(database: dependencies.DatabaseDep, domain: Domain = None) -> Response:
    """The same as Parquet."""
    headers = {"Content-Disposition": 'attachment; filename="runtimes.parquet"'}
    table = runtimes_parquet(database, domain)
    return Response(table, media_type="application/vnd.apache.parquet", headers=headers)


@router.get("/health")
def get_health(session: dependencies.Reading) -> schemas.Health:
    """Answers when the database does."""
    count = select(func.count()).select_from(TuningRow)
    return schemas.Health(
        status="ok",
        version=version("autosync"),
        database=session.get_bind().dialect.name,
        schema_revision=current_revision(session.connection()) or "",
        queued=session.scalar(count.where(TuningRow.state == "queued")) or 0,
        running=session.scalar(count.where(TuningRow.state.in_(ACTIVE))) or 0,
    )
