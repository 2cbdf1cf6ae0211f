"""Tunings: start, follow, read, cancel."""

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from autosync.api.engine import tuning_queue
from autosync.api.http.dependencies import (
    Body,
    ClientName,
    DatabaseDep,
    Id,
    IdempotencyKey,
    LastEvent,
    Limit,
    Offset,
    Reading,
    UploadsDep,
)
from autosync.api.http.event_stream import stream
from autosync.api.http.openapi import document_answer, posted, refusals
from autosync.api.http.schemas import CancelledTuning
from autosync.api.views import reports
from autosync.api.views.exports import bundle_document
from autosync.api.views.timeline_schemas import Timeline
from autosync.api.views.tuning_schemas import RankedStrategies, Trials, Tuning, Tunings

router = APIRouter(prefix="/v1/tunings", tags=["tunings"])
BUNDLE = {**document_answer("Bundle", "best.json"), **refusals(404, 409, 422)}
TRACE: dict[int | str, dict[str, Any]] = {
    200: {"description": "Chrome trace.", "content": {"application/json": {}}},
    **refusals(404, 422),
}
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"description": "Server-sent events.", "content": {"text/event-stream": {}}},
    **refusals(404, 422),
}


@router.post(
    "",
    status_code=202,
    responses=refusals(404, 409, 413, 422, 429),
    openapi_extra=posted("TuningBody", "application/json"),
)
def post_tuning(
    body: Body,
    uploads: UploadsDep,
    database: DatabaseDep,
    client: ClientName,
    response: Response,
    key: IdempotencyKey = None,
) -> Tuning:
    """Queue a tuning; a worker takes it up. `Location` is where to follow it."""
    tuning_id = uploads.tuning(body, client, key)
    response.headers["Location"] = f"/v1/tunings/{tuning_id}"
    with database.reading() as session:
        return reports.tuning(session, tuning_id)


@router.get("", responses=refusals(422))
def get_tunings(session: Reading, limit: Limit = 50, offset: Offset = 0) -> Tunings:
    """The newest first."""
    return reports.tunings(session, limit, offset)


@router.get("/{tuning_id}", responses=refusals(404, 422))
def get_tuning(tuning_id: Id, session: Reading) -> Tuning:
    """State, progress and the best so far."""
    return reports.tuning(session, tuning_id)


@router.get("/{tuning_id}/strategies", responses=refusals(404, 422))
def get_strategies(tuning_id: Id, session: Reading) -> RankedStrategies:
    """Ranked: in words, predicted and measured."""
    return reports.ranked_strategies(session, tuning_id)


@router.get("/{tuning_id}/trials", responses=refusals(404, 422))
def get_trials(tuning_id: Id, session: Reading) -> Trials:
    """Finished trials, oldest first."""
    return reports.trials(session, tuning_id)


@router.post("/{tuning_id}/cancel", responses=refusals(404, 409, 422))
def cancel_tuning(tuning_id: Id, database: DatabaseDep) -> CancelledTuning:
    """The trial at hand is finished, then the tuning stops. What was measured stays."""
    state = tuning_queue.cancel(database, tuning_id)
    return CancelledTuning.model_validate({"id": tuning_id, "state": state})


@router.get("/{tuning_id}/bundle", response_class=Response, responses=BUNDLE)
def get_bundle(tuning_id: Id, session: Reading, strategy: str | None = None) -> Response:
    """What `autosync.distribute` applies: the confirmed answer, or any strategy of the tuning."""
    headers = {"Content-Disposition": 'attachment; filename="best.json"'}
    document = bundle_document(session, tuning_id, strategy)
    return Response(document, media_type="application/json", headers=headers)


@router.get("/{tuning_id}/timeline", responses=refusals(404, 422))
def get_timeline(tuning_id: Id, session: Reading, strategy: str | None = None) -> Timeline:
    """One iteration, message by message, predicted and measured: of the answer, or of any strategy
    of the tuning. The finalists and DDP are recorded."""
    from autosync.api.views import timeline_views  # loads numba: only when asked for

    return timeline_views.timeline(session, tuning_id, strategy)


@router.get("/{tuning_id}/trace", response_class=Response, responses=TRACE)
def get_trace(tuning_id: Id, session: Reading, strategy: str | None = None) -> Response:
    """The same for ui.perfetto.dev and chrome://tracing."""
    from autosync.api.views import timeline_views  # loads numba: only when asked for

    headers = {"Content-Disposition": 'attachment; filename="trace.json"'}
    document = timeline_views.trace(session, tuning_id, strategy)
    return Response(document, media_type="application/json", headers=headers)


@router.get("/{tuning_id}/events", response_class=Response, responses=EVENTS)
def get_events(tuning_id: Id, database: DatabaseDep, last: LastEvent = 0) -> StreamingResponse:
    """Progress as it happens (`progress`), and the end (`end`). Goes on after `Last-Event-ID`."""
    with database.reading() as session:
        reports.tuning(session, tuning_id)
    return StreamingResponse(stream(database, tuning_id, last), media_type="text/event-stream")
