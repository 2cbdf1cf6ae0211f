"""Versions of the trained simulator, read for answers and pages."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from autosync.api.db.lookup import not_found
from autosync.api.db.tables import SimulatorRow, SimulatorTrainingRow, SimulatorVersionRow
from autosync.api.engine.simulator_versions import version_in_use, versions
from autosync.api.views.version_schemas import (
    SimulatorTraining,
    SimulatorTrainings,
    SimulatorVersion,
    SimulatorVersions,
)


def simulator_versions(session: Session) -> SimulatorVersions:
    """All of them, and which is in use."""
    items = [_version(session, row) for row in versions(session)]
    return SimulatorVersions(in_use=version_in_use(session), items=items)


def simulator_trainings(session: Session, limit: int, offset: int = 0) -> SimulatorTrainings:
    """The newest first."""
    row = SimulatorTrainingRow
    query = select(row).order_by(row.created_at.desc(), row.id).limit(limit).offset(offset)
    return SimulatorTrainings(items=[_training(session, each) for each in session.scalars(query)])


def simulator_training(session: Session, training_id: str) -> SimulatorTraining:
    """Raises NotFound."""
    known = session.get(SimulatorTrainingRow, training_id) if training_id.isalnum() else None
    if known is None:
        raise not_found("training", training_id, "GET /v1/simulators/trainings lists them.")
    return _training(session, known)


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
