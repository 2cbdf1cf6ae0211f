"""Whether the service is well, and how much it has to do."""

from typing import Literal

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from autosync.api.db.clock import now_seconds
from autosync.api.db.tables import ACTIVE, TuningRow
from autosync.api.engine.worker_registry import gpus_of_workers
from autosync.api.views.response_model import ResponseModel
from autosync.environment import own_version

_REVISION = text("SELECT version_num FROM alembic_version")


class Health(ResponseModel):
    status: Literal["ok"]
    version: str
    database: str
    schema_revision: str
    queued: int
    running: int


class Readiness(ResponseModel):
    """Whether what is queued will be worked on. oldest_queued_seconds: how long the tuning that
    has waited longest has waited; 0 where none waits."""

    status: Literal["ready", "no worker lives"]
    workers: int
    queued: int
    oldest_queued_seconds: float


def readiness(session: Session) -> Readiness:
    waiting = select(func.count(), now_seconds() - func.min(TuningRow.created_at))
    queued, oldest = session.execute(waiting.where(TuningRow.state == "queued")).one()
    workers = len(gpus_of_workers(session))
    return Readiness(
        status="ready" if workers else "no worker lives",
        workers=workers,
        queued=queued,
        oldest_queued_seconds=max(oldest or 0.0, 0.0),
    )


def health(session: Session) -> Health:
    """Answers when the database does."""
    count = select(func.count()).select_from(TuningRow)
    return Health(
        status="ok",
        version=own_version(),
        database=session.get_bind().dialect.name,
        schema_revision=session.scalar(_REVISION) or "",
        queued=session.scalar(count.where(TuningRow.state == "queued")) or 0,
        running=session.scalar(count.where(TuningRow.state.in_(ACTIVE))) or 0,
    )
