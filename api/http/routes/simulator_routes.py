"""Trained simulators: keep, list, fetch, remove."""

from typing import Annotated, Any

from fastapi import APIRouter, File, Response

from autosync.api.db.tables import SimulatorRow
from autosync.api.engine.registry import SIMULATORS
from autosync.api.engine.simulator_store import (
    checkpoint_files,
    keep_simulator,
    list_simulators,
    remove_simulator,
)
from autosync.api.http import dependencies, schemas
from autosync.api.http.openapi import problems

router = APIRouter(prefix="/v1/simulators", tags=["simulators"])

Card = Annotated[bytes, File(description="The checkpoint's .json.")]
Weights = Annotated[bytes, File(description="The checkpoint's .safetensors.")]
KEPT: dict[int | str, dict[str, Any]] = {
    200: {"model": schemas.TrainedSimulator, "description": "It was here already."}
}


@router.get("", responses=problems(422))
def get_simulators(
    session: dependencies.Reading, limit: dependencies.Limit = 100, offset: dependencies.Offset = 0
) -> schemas.Simulators:
    """Trained simulators by name, and the bundled ones. A tuning takes any of them."""
    rows = list_simulators(session, limit, offset)
    return schemas.Simulators(
        items=[schemas.TrainedSimulator.model_validate(row) for row in rows],
        bundled=list(SIMULATORS),
    )


@router.put("/{name}", status_code=201, responses={**KEPT, **problems(400, 404, 409, 413, 422)})
def put_simulator(
    name: dependencies.Id,
    card: Card,
    weights: Weights,
    database: dependencies.DatabaseDep,
    response: Response,
) -> schemas.TrainedSimulator:
    """Keep a checkpoint, the two files of `save_checkpoint`. They are data, checked against each
    other and against what this version reads; nothing in them is executed. A name that is taken is
    never given to another one."""
    new = keep_simulator(database, name, card, weights)
    response.status_code = 201 if new else 200
    with database.reading() as session:
        return schemas.TrainedSimulator.model_validate(session.get_one(SimulatorRow, name))


@router.get(
    "/{name}",
    response_class=Response,
    responses={
        200: {"description": "The card.", "content": {"application/json": {}}},
        **problems(404, 422),
    },
)
def get_card(name: dependencies.Id, session: dependencies.Reading) -> Response:
    """What it learned from, how well it ranks what it had not seen, and by which versions."""
    return Response(checkpoint_files(session, name)[0], media_type="application/json")


@router.get(
    "/{name}/weights",
    response_class=Response,
    responses={
        200: {"description": "safetensors.", "content": {"application/octet-stream": {}}},
        **problems(404, 422),
    },
)
def get_weights(name: dependencies.Id, session: dependencies.Reading) -> Response:
    _, weights = checkpoint_files(session, name)
    headers = {"Content-Disposition": f'attachment; filename="{name}.safetensors"'}
    return Response(weights, media_type="application/octet-stream", headers=headers)


@router.delete("/{name}", status_code=204, responses=problems(404, 409, 422))
def delete_simulator(name: dependencies.Id, database: dependencies.DatabaseDep) -> None:
    """Refused while a tuning that is not at its end uses it."""
    remove_simulator(database, name)
