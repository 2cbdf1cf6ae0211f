"""What a service has and does, as numbers to watch."""

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from autosync.api.db.tables import STATES, TuningRow
from autosync.api.views.service_health import readiness


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
