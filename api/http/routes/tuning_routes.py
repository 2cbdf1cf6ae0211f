"""Tunings: start, follow, read, cancel."""

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from autosync.api.engine import job_queue
from autosync.api.engine.submission import submit
from autosync.api.http import dependencies, schemas
from autosync.api.http.openapi import document_answer, problems
from autosync.api.views import reports
from autosync.api.views.event_stream import stream
from autosync.api.views.exports import bundle_document

router = APIRouter(prefix="/v1/tunings", tags=["tunings"])


@router.post("", status_code=202, responses=problems(400, 404, 409, 413, 422))
def post_tuning(
    request: schemas.TuningBody, database: dependencies.DatabaseDep, response: Response
) -> schemas.Tuning:
    """Queue a tuning; a worker takes it up. `Location` is where to follow it."""
    tuning_id = submit(database, request)
    response.headers["Location"] = f"/v1/tunings/{tuning_id}"
    with database.reading() as session:
        return reports.tuning(session, tuning_id)


@router.get("", responses=problems(422))
def get_tunings(
    session: dependencies.Reading, limit: dependencies.Limit = 50, offset: dependencies.Offset = 0
) -> schemas.Tunings:
    """The newest first."""
    return reports.tunings(session, limit, offset)


@router.get("/{tuning_id}", responses=problems(404, 422))
def get_tuning(tuning_id: dependencies.Id, session: dependencies.Reading) -> schemas.Tuning:
    """State, progress and the best so far."""
    return reports.tuning(session, tuning_id)


@router.get("/{tuning_id}/strategies", responses=problems(404, 422))
def get_strategies(
    tuning_id: dependencies.Id, session: dependencies.Reading
) -> schemas.RankedStrategies:
    """Ranked: in words, predicted and measured."""
    return reports.ranked_strategies(session, tuning_id)


@router.get("/{tuning_id}/trials", responses=problems(404, 422))
def get_trials(tuning_id: dependencies.Id, session: dependencies.Reading) -> schemas.Trials:
    """Finished trials, oldest first."""
    return reports.trials(session, tuning_id)


@router.post("/{tuning_id}/cancel", responses=problems(404, 409, 422))
def cancel_tuning(
    tuning_id: dependencies.Id, database: dependencies.DatabaseDep
) -> schemas.Cancelled:
    """The trial at hand is finished, then the tuning stops. What was measured stays."""
    return schemas.Cancelled.model_validate(
        {"id": tuning_id, "state": job_queue.cancel(database, tuning_id)}
    )


@router.get(
    "/{tuning_id}/bundle",
    response_class=Response,
    responses={**document_answer("Bundle", "best.json"), **problems(404, 409, 422)},
)
def get_bundle(
    tuning_id: dependencies.Id, session: dependencies.Reading, strategy: str | None = None
) -> Response:
    """What `autosync.distribute` applies: the confirmed answer, or any strategy of the tuning."""
    headers = {"Content-Disposition": 'attachment; filename="best.json"'}
    document = bundle_document(session, tuning_id, strategy)
    return Response(document, media_type="application/json", headers=headers)


@router.get("/{tuning_id}/timeline", responses=problems(404, 422))
def get_timeline(
    tuning_id: dependencies.Id, session: dependencies.Reading, strategy: str | None = None
) -> schemas.Timeline:
    """One iteration, message by message, predicted and measured: of the answer, or of any strategy
    of the tuning. The finalists and DDP are recorded."""
    from autosync.api.views.timeline_views import (  # loads numba: only when asked for
        recorded,
        timeline_answer,
    )

    return timeline_answer(recorded(session, tuning_id, strategy))


@router.get(
    "/{tuning_id}/trace",
    response_class=Response,
    responses={
        200: {"description": "Chrome trace.", "content": {"application/json": {}}},
        **problems(404, 422),
    },
)
def get_trace(
    tuning_id: dependencies.Id, session: dependencies.Reading, strategy: str | None = None
) -> Response:
    """The same for ui.perfetto.dev and chrome://tracing."""
    from autosync.api.views.timeline_views import compare, recorded

    of = recorded(session, tuning_id, strategy)
    headers = {"Content-Disposition": 'attachment; filename="trace.json"'}
    document = compare(of.strategy, of.domain, of.timeline).chrome()
    return Response(document, media_type="application/json", headers=headers)


@router.get(
    "/{tuning_id}/events",
    response_class=Response,
    responses={
        200: {"description": "Server-sent events.", "content": {"text/event-stream": {}}},
        **problems(404, 422),
    },
)
def get_events(
    tuning_id: dependencies.Id, database: dependencies.DatabaseDep, last: dependencies.LastEvent = 0
) -> StreamingResponse:
    """Progress as it happens (`progress`), and the end (`end`). Goes on after `Last-Event-ID`."""
    with database.reading() as session:
        reports.tuning(session, tuning_id)
    return StreamingResponse(stream(database, tuning_id, last), media_type="text/event-stream")
