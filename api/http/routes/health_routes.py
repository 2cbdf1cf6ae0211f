"""Whether the service is well: without a key, so that what restarts it needs none."""

from typing import Any

from fastapi import APIRouter, Response

from autosync.api.http.dependencies import Reading
from autosync.api.views.service_health import Health, Readiness, health, readiness

router = APIRouter(prefix="/v1", tags=["service"])
NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {"model": Readiness, "description": "No worker lives: what is queued waits."}
}


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
