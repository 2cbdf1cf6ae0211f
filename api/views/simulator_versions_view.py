"""Versions of the trained simulator, read for answers and pages."""

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from autosync.api.db.lookup import not_found
from autosync.api.db.tables import SimulatorRow, SimulatorTrainingRow, SimulatorVersionRow
from autosync.api.engine.simulator_store import version_in_use, versions
from autosync.api.views.paging import one_page, read_cursor
from autosync.api.views.schemas import (
    SimulatorTraining,
    SimulatorTrainings,
    SimulatorVersion,
    SimulatorVersions,
)


def simulator_versions(
    session: Session, limit: int | None = None, cursor: str | None = None
) -> SimulatorVersions:
    """The newest first, and which is in use. limit: by default all. cursor: `next` of the page
    before.

    Raises:
        InvalidInput: the cursor is none of this list.
    """
    below = read_cursor(cursor, int)[0] if cursor else None
    found = versions(session, None if limit is None else limit + 1, below)
    rows, following = one_page(found, limit, lambda row: (row.number,))
    return SimulatorVersions(
        in_use=version_in_use(session),
        items=[_version(session, row) for row in rows],
        next=following,
    )


def simulator_trainings(
    session: Session, limit: int, cursor: str | None = None
) -> SimulatorTrainings:
    """The newest first; as `simulator_versions`."""
    key = (SimulatorTrainingRow.created_at, SimulatorTrainingRow.id)
    query = select(SimulatorTrainingRow).order_by(*(column.desc() for column in key))
    if cursor:
        query = query.where(tuple_(*key) < read_cursor(cursor, float, str))
    found = session.scalars(query.limit(limit + 1)).all()
    rows, following = one_page(found, limit, lambda row: (row.created_at, row.id))
    return SimulatorTrainings(items=[_training(session, row) for row in rows], next=following)


def simulator_training(session: Session, training_id: str) -> SimulatorTraining:
    """Raises NotFound."""
    known = session.get(SimulatorTrainingRow, training_id) if training_id.isalnum() else None
    if known is None:
        raise not_found("training", training_id, "GET /v1/simulators/trainings lists them.")
    return _training(session, known)


def version_of_simulator(session: Session, name: str) -> SimulatorVersion | None:
    """Of the simulator of that name, if it is one."""
    query = select(SimulatorVersionRow).where(SimulatorVersionRow.simulator == name)
    row = session.scalars(query).first()
    return None if row is None else _version(session, row)


def _version(session: Session, row: SimulatorVersionRow) -> SimulatorVersion:
    simulator = session.get_one(SimulatorRow, row.simulator)
    known = {
        name: getattr(row, name) for name in SimulatorVersion.model_fields if hasattr(row, name)
    }
    return SimulatorVersion(**known, domains=simulator.domains, trials=simulator.trials)


def _training(session: Session, row: SimulatorTrainingRow) -> SimulatorTraining:
    version = select(SimulatorVersionRow.number).where(SimulatorVersionRow.training_id == row.id)
    known = {
        name: getattr(row, name) for name in SimulatorTraining.model_fields if hasattr(row, name)
    }
    return SimulatorTraining(**known, version=session.scalar(version))
