"""Trained simulators: the versions, their trainings, and those that are stored by name."""

from typing import Annotated, Any

from fastapi import APIRouter, File, Query, Response

from autosync.api.engine.job_queue import enqueue_training
from autosync.api.engine.simulator_store import (
    checkpoint_files,
    promote,
    remove_simulator,
    store_simulator,
)
from autosync.api.http.access.guard import NEEDS_ADMIN
from autosync.api.http.dependencies import Cursor, DatabaseDep, Id, Limit, Number, Reading
from autosync.api.http.entity_tags import UNCHANGED, SeenTags, tagged
from autosync.api.http.openapi import refusals
from autosync.api.views import simulators
from autosync.api.views.schemas import (
    Simulators,
    SimulatorTraining,
    SimulatorTrainings,
    SimulatorVersions,
    TrainedSimulator,
)

router = APIRouter(prefix="/v1/simulators", tags=["simulators"])

PROMOTED_SHOWN = 100
"""Versions in the answer to a promotion, the newest first."""
Card = Annotated[bytes, File(description="The checkpoint's .json.")]
Weights = Annotated[bytes, File(description="The checkpoint's .safetensors.")]
STORED: dict[int | str, dict[str, Any]] = {
    200: {"model": TrainedSimulator, "description": "It was here already."},
    **refusals(400, 404, 409, 413),
}
CARD: dict[int | str, dict[str, Any]] = {
    200: {"description": "The card.", "content": {"application/json": {}}},
    **UNCHANGED,
    **refusals(404),
}
WEIGHTS: dict[int | str, dict[str, Any]] = {
    200: {"description": "safetensors.", "content": {"application/octet-stream": {}}},
    **UNCHANGED,
    **refusals(404),
}


@router.get("/versions")
def get_versions(session: Reading, limit: Limit = 100, cursor: Cursor = None) -> SimulatorVersions:
    """Versions of the learned simulator, the newest first, and which is in use: what `learned`
    stands for."""
    return simulators.simulator_versions(session, limit, cursor)


@router.post("/versions/{number}/promote", responses=refusals(404, 409), dependencies=[NEEDS_ADMIN])
def post_promotion(number: Number, database: DatabaseDep) -> SimulatorVersions:
    """Use this version from now on; tunings that have begun keep theirs."""
    promote(database, number)
    with database.reading() as session:
        return simulators.simulator_versions(session, PROMOTED_SHOWN)


@router.post("/trainings", status_code=202, dependencies=[NEEDS_ADMIN])
def post_training(
    database: DatabaseDep,
    response: Response,
    seed: Annotated[
        int, Query(ge=0, lt=2**53, description="Noted in its card; nothing in a version is drawn.")
    ] = 0,
) -> SimulatorTraining:
    """Train the next version on what was measured. A worker takes it up when no tuning waits;
    one that waits already is answered."""
    with database.writing() as session:
        training_id = enqueue_training(session, seed=seed)
    response.headers["Location"] = f"/v1/simulators/trainings/{training_id}"
    with database.reading() as session:
        return simulators.simulator_training(session, training_id)


@router.get("/trainings")
def get_trainings(session: Reading, limit: Limit = 50, cursor: Cursor = None) -> SimulatorTrainings:
    """The newest first."""
    return simulators.simulator_trainings(session, limit, cursor)


@router.get("/trainings/{training_id}", responses=refusals(404))
def get_training(training_id: Id, session: Reading) -> SimulatorTraining:
    """How far it is, and what came of it."""
    return simulators.simulator_training(session, training_id)


@router.get("")
def get_simulators(session: Reading, limit: Limit = 100, cursor: Cursor = None) -> Simulators:
    """Trained simulators by name, and the bundled ones. A tuning takes any of them."""
    return simulators.simulators(session, limit, cursor)


@router.put("/{name}", status_code=201, responses=STORED, dependencies=[NEEDS_ADMIN])
def put_simulator(
    name: Id, card: Card, weights: Weights, database: DatabaseDep, response: Response
) -> TrainedSimulator:
    """Store a checkpoint, the two files of `save_checkpoint`. They are data, checked against each
    other and against what this version reads; nothing in them is executed. A name that is taken is
    never given to another one."""
    new = store_simulator(database, name, card, weights)
    response.status_code = 201 if new else 200
    with database.reading() as session:
        return simulators.simulator(session, name)


@router.get("/{name}", response_class=Response, responses=CARD)
def get_card(name: Id, session: Reading, seen: SeenTags = None) -> Response:
    """What it learned from, how well it ranks what it had not seen, and by which versions."""
    return tagged(lambda: checkpoint_files(session, name)[0], seen)


@router.get("/{name}/weights", response_class=Response, responses=WEIGHTS)
def get_weights(name: Id, session: Reading, seen: SeenTags = None) -> Response:
    _, weights = checkpoint_files(session, name)
    headers = {"Content-Disposition": f'attachment; filename="{name}.safetensors"'}
    return tagged(lambda: weights, seen, media_type="application/octet-stream", headers=headers)


@router.delete("/{name}", status_code=204, responses=refusals(404, 409), dependencies=[NEEDS_ADMIN])
def delete_simulator(name: Id, database: DatabaseDep) -> None:
    """Refused while a tuning that is not at its end uses it."""
    remove_simulator(database, name)
