"""The service itself: health, limits, metrics, and the keys that let clients in."""

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from autosync.api.engine.api_keys import CLIENT_NAME, MOST_DAYS, make_key, revoke_key
from autosync.api.engine.service_limits import ServiceLimits
from autosync.api.http.access.guard import NEEDS_ADMIN
from autosync.api.http.dependencies import (
    CallerDep,
    Cursor,
    DatabaseDep,
    FeedDep,
    HealthReading,
    Id,
    Limit,
    LimitsDep,
    Reading,
)
from autosync.api.http.middleware import TEXT_FORMAT, Labels, RequestMetrics, gauge_lines
from autosync.api.http.openapi import refusals
from autosync.api.spec import KeyScope
from autosync.api.views import service
from autosync.api.views.schemas import ApiKey, ApiKeys, Health, MadeKey, Readiness
from autosync.errors import NotSupported

open_router = APIRouter(prefix="/v1", tags=["service"])
"""Without a key, so that what restarts the service needs none."""
router = APIRouter(prefix="/v1", tags=["service"])
keys_router = APIRouter(prefix="/v1/keys", tags=["keys"], dependencies=[NEEDS_ADMIN])
metrics_router = APIRouter(include_in_schema=False)
NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {"model": Readiness, "description": "No worker lives: what is queued waits."}
}


@open_router.get("/health")
def get_health(session: HealthReading) -> Health:
    """Answers when the database does."""
    return service.health(session)


@open_router.get("/ready", responses=NOT_READY)
def get_ready(session: HealthReading, response: Response) -> Readiness:
    """How many workers live, and how long the queue has waited for one."""
    found = service.readiness(session)
    response.status_code = 200 if found.workers else 503
    return found


@router.get("/limits")
def get_limits(limits: LimitsDep) -> ServiceLimits:
    """What the operator of this service lets its clients ask for."""
    return limits


@metrics_router.get("/metrics")
def get_metrics(request: Request, session: Reading, feed: FeedDep) -> Response:
    """Of the database, and of this process since it began."""
    found = service.service_counts(session)
    requests: RequestMetrics = request.app.state.metrics
    by_state: dict[Labels, float] = {
        (("state", state),): count for state, count in found.tunings.items()
    }
    lines = [
        *gauge_lines("autosync_tunings", "Tunings by state.", by_state),
        *gauge_lines("autosync_workers", "Workers that live.", {(): found.workers}),
        *gauge_lines(
            "autosync_oldest_queued_seconds",
            "How long the tuning that waits longest has waited.",
            {(): found.oldest_queued_seconds},
        ),
        *gauge_lines("autosync_listeners", "Who follows events.", {(): feed.count}),
        *requests.lines(),
    ]
    return Response("\n".join([*lines, ""]), media_type=TEXT_FORMAT)


class KeyBody(BaseModel):
    """A key to be made."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=f"^{CLIENT_NAME}$", description="Of the client it is for.")]
    scope: KeyScope
    days: Annotated[int | None, Field(ge=1, le=MOST_DAYS, description="After which it ends.")] = (
        None
    )


@keys_router.get("")
def get_keys(session: Reading, limit: Limit = 100, cursor: Cursor = None) -> ApiKeys:
    """The newest first, with those that were revoked or have expired."""
    return service.api_keys(session, limit, cursor)


@keys_router.post("", status_code=201, responses=refusals(409))
def post_key(body: KeyBody, database: DatabaseDep, caller: CallerDep) -> MadeKey:
    """Make one. Refused by a service that asks nobody for a key: the first one closes it, which is
    for its operator to do."""
    if caller.way == "open":
        raise NotSupported(
            "this service asks nobody for a key, and makes none.",
            thing="keys",
            remedy="Its operator makes the first: `autosync keys add NAME --scope admin`.",
        )
    made = make_key(database, body.name, body.scope, body.days)
    with database.reading() as session:
        return MadeKey(**service.api_key(session, made.id).model_dump(), key=made.text)


@keys_router.post("/{key_id}/revoke", responses=refusals(404))
def post_revocation(key_id: Id, database: DatabaseDep) -> ApiKey:
    """From now on it lets nobody in, nor do the browsers that logged in with it."""
    revoke_key(database, key_id)
    with database.reading() as session:
        return service.api_key(session, key_id)
