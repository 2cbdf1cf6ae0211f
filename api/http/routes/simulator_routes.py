"""Trained simulators: store, list, fetch, remove."""

from typing import Annotated, Any

from fastapi import APIRouter, File, Response

from autosync.api.engine.simulator_store import checkpoint_files, remove_simulator, store_simulator
from autosync.api.http.access.guard import NEEDS_ADMIN
from autosync.api.http.dependencies import Cursor, DatabaseDep, Id, Limit, Reading
from autosync.api.http.entity_tags import UNCHANGED, SeenTags, tagged
from autosync.api.http.openapi import refusals
from autosync.api.views import stored_documents
from autosync.api.views.schemas import Simulators, TrainedSimulator

router = APIRouter(prefix="/v1/simulators", tags=["simulators"])

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


@router.get("")
def get_simulators(session: Reading, limit: Limit = 100, cursor: Cursor = None) -> Simulators:
    """Trained simulators by name, and the bundled ones. A tuning takes any of them."""
    return stored_documents.simulators(session, limit, cursor)


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
        return stored_documents.simulator(session, name)


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
