"""Whether the service is well, and how much it has to do."""

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from autosync.api.db.database import now_seconds
from autosync.api.db.tables import ACTIVE, STATES, TuningRow
from autosync.api.engine.worker_registry import gpus_of_workers
from autosync.api.views.schemas import ResponseModel
from autosync.environment import own_version


@dataclass(frozen=True, slots=True)
class ServiceCounts:
    """tunings: by state. oldest_queued_seconds: how long the queue's oldest has waited."""

    tunings: dict[str, int]
    workers: int
    oldest_queued_seconds: float


def service_counts(session: Session) -> ServiceCounts:
    query = select(TuningRow.state, func.count()).group_by(TuningRow.state)
    found = dict(session.execute(query).all())
    ready = readiness(session)
    return ServiceCounts(
        tunings={state: found.get(state, 0) for state in STATES},
        workers=ready.workers,
        oldest_queued_seconds=ready.oldest_queued_seconds,
    )


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
