"""Trained simulators: keep, list, fetch, remove."""

from typing import Annotated, Any

from fastapi import APIRouter, File, Response

from api import deps, schemas
from api.db.tables import SimulatorRow
from api.openapi import problems
from api.registry import SIMULATORS
from api.simulators import (
    checkpoint_files,
    keep_simulator,
    list_simulators,
    remove_simulator,
)

router = APIRouter(prefix="/v1/simulators", tags=["simulators"])

Card = Annotated[bytes, File(description="The checkpoint's .json.")]
Weights = Annotated[bytes, File(description="The checkpoint's .safetensors.")]
KEPT: dict[int | str, dict[str, Any]] = {
    200: {"model": schemas.TrainedSimulator, "description": "It was here already."}
}


@router.get("", responses=problems(422))
def get_simulators(
    session: deps.Reading, limit: deps.Limit = 100, offset: deps.Offset = 0
) -> schemas.Simulators:
    """Trained simulators by name, and the bundled ones. A tuning takes any of them."""
    rows = list_simulators(session, limit, offset)
    return schemas.Simulators(
        items=[schemas.TrainedSimulator.model_validate(row) for row in rows],
        bundled=list(SIMULATORS),
    )


@router.put("/{name}", status_code=201, responses={**KEPT, **problems(400, 404, 409, 413, 422)})
def put_simulator(
    name: deps.Id, card: Card, weights: Weights, database: deps.DatabaseDep, response: Response
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
def get_card(name: deps.Id, session: deps.Reading) -> Response:
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
def get_weights(name: deps.Id, session: deps.Reading) -> Response:
    _, weights = checkpoint_files(session, name)
    headers = {"Content-Disposition": f'attachment; filename="{name}.safetensors"'}
    return Response(weights, media_type="application/octet-stream", headers=headers)


@router.delete("/{name}", status_code=204, responses=problems(404, 409, 422))
def delete_simulator(name: deps.Id, database: deps.DatabaseDep) -> None:
    """Refused while a tuning that is not at its end uses it."""
    remove_simulator(database, name)
