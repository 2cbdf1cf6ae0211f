"""Whether the service is well, how much it has to do, and the keys that let clients in."""

from dataclasses import dataclass

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from autosync.api.db.database import now_seconds
from autosync.api.db.lookup import stored
from autosync.api.db.tables import (
    ACTIVE,
    STATES,
    ApiKeyRow,
    EventRow,
    SimulatorTrainingRow,
    TuningRow,
)
from autosync.api.engine.worker_registry import gpus_of_workers
from autosync.api.views.paging import newest
from autosync.api.views.schemas import ApiKey, ApiKeys, Health, Readiness
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


@dataclass(frozen=True, slots=True)
class ServiceActivity:
    """busy: workers that have a tuning; one that only trains takes the next. queued: tunings that
    wait. training: what the simulator's training says, empty where none runs; trainings_queued: how
    many wait."""

    workers: int
    busy: int
    queued: int
    training: str
    trainings_queued: int

    @property
    def all_busy(self) -> bool:
        return 0 < self.workers <= self.busy


def service_activity(session: Session) -> ServiceActivity:
    """What works now, for the dashboard's status bar."""
    now = session.scalars(select(now_seconds())).one()
    claimed = select(func.count(TuningRow.worker.distinct())).select_from(TuningRow)
    tuning = (TuningRow.state.in_(ACTIVE), TuningRow.lease_until >= now)
    busy = session.scalar(claimed.where(*tuning))
    training = select(SimulatorTrainingRow.message).where(SimulatorTrainingRow.state == "running")
    waiting = select(func.count()).select_from(SimulatorTrainingRow)
    running = session.scalars(training.limit(1)).first()
    ready = readiness(session)
    return ServiceActivity(
        workers=max(ready.workers, busy or 0),  # a command that tunes by itself is in no list
        busy=busy or 0,
        queued=ready.queued,
        training="" if running is None else running or "has begun",
        trainings_queued=session.scalar(waiting.where(SimulatorTrainingRow.state == "queued")) or 0,
    )


_REVISION = text("SELECT version_num FROM alembic_version")


def readiness(session: Session) -> Readiness:
    # a tuning waits since its last event, as "goes on"; without any, since it was asked for
    told = select(EventRow.created_at).where(EventRow.tuning_id == TuningRow.id)
    last = told.order_by(EventRow.id.desc()).limit(1).scalar_subquery()
    since = func.coalesce(last, TuningRow.created_at)
    waiting = select(func.count(), now_seconds() - func.min(since)).select_from(TuningRow)
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


def api_keys(session: Session, limit: int | None = None, cursor: str | None = None) -> ApiKeys:
    """The newest first, without what would let anybody in. limit: by default all. cursor: `next`
    of the page before.

    Raises:
        InvalidInput: the cursor is of another list.
    """
    rows, following = newest(session, ApiKeyRow, limit, cursor)
    return ApiKeys(items=[ApiKey.model_validate(row) for row in rows], next=following)


def api_key(session: Session, key_id: str) -> ApiKey:
    """Raises NotFound."""
    return ApiKey.model_validate(stored(session, ApiKeyRow, key_id, "key"))
