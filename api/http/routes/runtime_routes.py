"""Runtimes of all trials, as tables that are streamed."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from autosync.api.http.dependencies import DatabaseDep
from autosync.api.http.openapi import refusals
from autosync.api.http.slow_readers import Export
from autosync.api.views.runtime_dataset import runtimes_zip
from autosync.api.views.runtimes import (
    RuntimeFilter,
    runtimes_csv,
    runtimes_jsonl,
    runtimes_parquet,
)

router = APIRouter(prefix="/v1", tags=["runtimes"])
PARQUET, JSONL = "application/vnd.apache.parquet", "application/jsonl"
ZIP = "application/zip"
ID, NAME = "^[0-9a-f]{32}$", r"^[^\x00-\x1f]{1,200}$"
LATEST_SECONDS = 1e11
"""Of a moment, since 1970."""


def _answers(media_type: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"description": "A table, streamed.", "content": {media_type: {}}}}


async def _only(
    domain: Annotated[str | None, Query(pattern=ID, description="Trials of this domain.")] = None,
    tuning: Annotated[str | None, Query(pattern=ID, description="Trials of this tuning.")] = None,
    graph: Annotated[str | None, Query(pattern=NAME, description="Graphs of this name.")] = None,
    cluster: Annotated[
        str | None, Query(pattern=NAME, description="Clusters of this name.")
    ] = None,
    since: Annotated[
        float | None, Query(ge=0, le=LATEST_SECONDS, description="As `measured_at`: then or later.")
    ] = None,
    until: Annotated[
        float | None, Query(ge=0, le=LATEST_SECONDS, description="As `measured_at`: before then.")
    ] = None,
) -> RuntimeFilter:
    return RuntimeFilter(domain, tuning, graph, cluster, since, until)


Only = Annotated[RuntimeFilter, Depends(_only)]


@router.get("/runtimes.csv", response_class=Response, responses=_answers("text/csv"))
def get_runtimes_csv(database: DatabaseDep, only: Only) -> Export:
    """Every trial: its domain, scales, load and versions, and of its strategy the id and one line
    of words (column `strategy`). GET /v1/strategies/{strategy_id} is the strategy itself.

    Text that a spreadsheet would run as a formula begins with an apostrophe; the other tables have
    it as it is."""
    return Export(runtimes_csv(database, only), "text/csv", "runtimes.csv")


@router.get("/runtimes.jsonl", response_class=Response, responses=_answers(JSONL))
def get_runtimes_jsonl(database: DatabaseDep, only: Only) -> Export:
    """The same, a JSON object a line."""
    return Export(runtimes_jsonl(database, only), JSONL, "runtimes.jsonl")


@router.get("/runtimes.parquet", response_class=Response, responses=_answers(PARQUET))
def get_runtimes_parquet(database: DatabaseDep, only: Only) -> Export:
    """The same as Parquet, with the timelines of those trials that recorded one."""
    return Export(runtimes_parquet(database, only), PARQUET, "runtimes.parquet")


@router.get("/runtimes.zip", response_class=Response, responses={**_answers(ZIP), **refusals(409)})
def get_runtimes_zip(database: DatabaseDep, only: Only) -> Export:
    """The same as the folder that `autosync simulator train` reads, with the strategies and domains
    themselves. Refused where times of one domain do not compare."""
    return Export(runtimes_zip(database, only), ZIP, "runtimes.zip")
