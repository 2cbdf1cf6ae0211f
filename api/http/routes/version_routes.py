"""Versions of the trained simulator: train, follow, list, bring back."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from autosync.api.engine.job_queue import enqueue_training
from autosync.api.engine.simulator_store import promote
from autosync.api.http.access.guard import NEEDS_ADMIN
from autosync.api.http.dependencies import Cursor, DatabaseDep, Id, Limit, Number, Reading
from autosync.api.http.openapi import refusals
from autosync.api.views import simulator_versions_view as view
from autosync.api.views.schemas import (
    SimulatorTraining,
    SimulatorTrainings,
    SimulatorVersions,
)

PROMOTED_SHOWN = 100
"""Versions in the answer to a promotion, the newest first."""

router = APIRouter(prefix="/v1/simulators", tags=["simulators"])


@router.get("/versions")
def get_versions(session: Reading, limit: Limit = 100, cursor: Cursor = None) -> SimulatorVersions:
    """Versions of the trained simulator, the newest first, and which is in use: what `learned`,
    `ensemble` and its members stand for."""
    return view.simulator_versions(session, limit, cursor)


@router.post("/versions/{number}/promote", responses=refusals(404, 409), dependencies=[NEEDS_ADMIN])
def post_promotion(number: Number, database: DatabaseDep) -> SimulatorVersions:
    """Use this version from now on; tunings that have begun keep theirs."""
    promote(database, number)
    with database.reading() as session:
        return view.simulator_versions(session, PROMOTED_SHOWN)


@router.post("/trainings", status_code=202, dependencies=[NEEDS_ADMIN])
def post_training(
    database: DatabaseDep,
    response: Response,
    seed: Annotated[int, Query(ge=0, lt=2**53, description="Of networks and trees.")] = 0,
) -> SimulatorTraining:
    """Train the next version on all that was measured. A worker takes it up when no tuning waits;
    one that waits already is answered."""
    with database.writing() as session:
        training_id = enqueue_training(session, seed=seed)
    response.headers["Location"] = f"/v1/simulators/trainings/{training_id}"
    with database.reading() as session:
        return view.simulator_training(session, training_id)


@router.get("/trainings")
def get_trainings(session: Reading, limit: Limit = 50, cursor: Cursor = None) -> SimulatorTrainings:
    """The newest first."""
    return view.simulator_trainings(session, limit, cursor)


@router.get("/trainings/{training_id}", responses=refusals(404))
def get_training(training_id: Id, session: Reading) -> SimulatorTraining:
    """How far it is, and what came of it."""
    return view.simulator_training(session, training_id)
