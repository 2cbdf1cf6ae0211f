"""Tunings: start, follow, steer, read."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from autosync.api.engine import job_queue, tuning_control
from autosync.api.http.dependencies import (
    Body,
    ClientName,
    Cursor,
    DatabaseDep,
    FeedDep,
    Id,
    IdempotencyKey,
    LastEvent,
    Limit,
    LimitsDep,
    Reading,
    sort_of,
)
from autosync.api.http.entity_tags import UNCHANGED, SeenTags, tagged, tagged_once_ended
from autosync.api.http.event_stream import events_page, stream
from autosync.api.http.openapi import document_answer, posted, refusals
from autosync.api.http.uploads import start_tuning
from autosync.api.spec import NotesSpec
from autosync.api.views import reports
from autosync.api.views.bucket_curve import bucket_curve
from autosync.api.views.event_schemas import TuningEvents
from autosync.api.views.exports import (
    bundle_document,
    domain_document,
    measured_document,
    settings_document,
)
from autosync.api.views.reports import TuningFilter
from autosync.api.views.timeline_schemas import Timeline
from autosync.api.views.tuning_schemas import (
    BucketCurve,
    ChangedTuning,
    RankedStrategies,
    State,
    Trials,
    Tuning,
    Tunings,
)
from autosync.exports.settings import FrameworkName

StrategyId = Annotated[
    str | None, Query(max_length=200, description="One of this tuning; by default its answer.")
]
TuningSort = Annotated[str, sort_of(reports.TUNING_SORTS)]
TrialSort = Annotated[str, sort_of(reports.TRIAL_SORTS)]

router = APIRouter(prefix="/v1/tunings", tags=["tunings"])
BUNDLE = {**document_answer("Bundle", "best.json"), **UNCHANGED, **refusals(404, 409)}
SETTINGS = {
    **document_answer("FrameworkSettings", "The settings, and a snippet that applies them."),
    **UNCHANGED,
    **refusals(404, 409),
}
DOMAIN = {**document_answer("Domain", "The domain."), **UNCHANGED, **refusals(404)}
MEASURED = {
    **document_answer("EarlierTrials", "Measured strategies."),
    **UNCHANGED,
    **refusals(404),
}
READ = {**UNCHANGED, **refusals(404)}
TRACE: dict[int | str, dict[str, Any]] = {
    200: {"description": "Chrome trace.", "content": {"application/json": {}}},
    **READ,
}
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "model": TuningEvents,
        "description": "Server-sent events; with `after` a page of them.",
        "content": {"text/event-stream": {}},
    },
    **refusals(404),
}


@router.post(
    "",
    status_code=202,
    responses=refusals(404, 409),
    openapi_extra=posted("TuningSpec", "application/json"),
)
def post_tuning(
    body: Body,
    database: DatabaseDep,
    limits: LimitsDep,
    client: ClientName,
    response: Response,
    key: IdempotencyKey = None,
) -> Tuning:
    """Queue a tuning; a worker takes it up. `Location` is where to follow it."""
    tuning_id = start_tuning(database, body, client, key, limits)
    response.headers["Location"] = f"/v1/tunings/{tuning_id}"
    with database.reading() as session:
        return reports.tuning(session, tuning_id)


@router.get("", response_model=Tunings, responses=UNCHANGED)
def get_tunings(
    session: Reading,
    limit: Limit = 50,
    cursor: Cursor = None,
    state: Annotated[State | None, Query(description="Only those in this state.")] = None,
    tag: Annotated[
        str | None, Query(pattern=r"^[^\s,\x00-\x1f]{1,40}$", description="Only those with it.")
    ] = None,
    archived: Annotated[bool | None, Query(description="Only those that are, or are not.")] = None,
    prefix: Annotated[
        str | None, Query(pattern="^[0-9a-f]{1,32}$", description="Only ids that begin so.")
    ] = None,
    recorded: Annotated[
        str | None,
        Query(pattern="^[0-9a-f]{32}$", description="Only those with a timeline of this strategy."),
    ] = None,
    sort: TuningSort = "-created",
    seen: SeenTags = None,
) -> Response:
    """The newest first, unless they are sorted otherwise. A cursor is good for one sort."""

    def page() -> str:
        wanted = TuningFilter(
            state=state or "",
            tag=tag or "",
            prefix=prefix or "",
            recorded=recorded or "",
            archived=archived,
            sort=sort,
        )
        return reports.tunings(session, limit, cursor, wanted).model_dump_json()

    return tagged(page, seen)


@router.get("/{tuning_id}", response_model=Tuning, responses=READ)
def get_tuning(tuning_id: Id, session: Reading, seen: SeenTags = None) -> Response:
    """State, progress and the best so far."""
    return tagged(lambda: reports.tuning(session, tuning_id).model_dump_json(), seen)


@router.get("/{tuning_id}/strategies", response_model=RankedStrategies, responses=READ)
def get_strategies(
    tuning_id: Id,
    session: Reading,
    request: Request,
    limit: Limit = 100,
    cursor: Cursor = None,
    seen: SeenTags = None,
) -> Response:
    """Ranked: in words, predicted and measured. While the tuning runs, a strategy that is measured
    between two pages may be on both or on neither."""

    def page() -> str:
        return reports.ranked_strategies(session, tuning_id, limit, cursor).model_dump_json()

    return tagged_once_ended(session, tuning_id, request, page, seen)


@router.get("/{tuning_id}/buckets", response_model=BucketCurve, responses=READ)
def get_bucket_curve(
    tuning_id: Id, session: Reading, request: Request, seen: SeenTags = None
) -> Response:
    """torch's DDP by the sizes of its buckets, predicted and measured, of a tuning whose space is
    `buckets`."""

    def curve() -> str:
        return bucket_curve(session, tuning_id).model_dump_json()

    return tagged_once_ended(session, tuning_id, request, curve, seen)


@router.get("/{tuning_id}/trials", response_model=Trials, responses=READ)
def get_trials(
    tuning_id: Id,
    session: Reading,
    request: Request,
    limit: Limit = 100,
    cursor: Cursor = None,
    sort: TrialSort = "position",
    seen: SeenTags = None,
) -> Response:
    """Finished trials, oldest first unless they are sorted otherwise; later ones only come
    behind."""

    def page() -> str:
        return reports.trials(session, tuning_id, limit, cursor, sort).model_dump_json()

    return tagged_once_ended(session, tuning_id, request, page, seen)


@router.get("/{tuning_id}/bundle", response_class=Response, responses=BUNDLE)
def get_bundle(
    tuning_id: Id, session: Reading, strategy: StrategyId = None, seen: SeenTags = None
) -> Response:
    """What `autosync.distribute` applies: the confirmed answer, or any strategy of the tuning."""
    named = "" if strategy else '; filename="best.json"'  # a page names the others by what they are
    headers = {"Content-Disposition": f"attachment{named}"}
    return tagged(lambda: bundle_document(session, tuning_id, strategy), seen, headers=headers)


@router.get("/{tuning_id}/settings", response_class=Response, responses=SETTINGS)
def get_settings(
    tuning_id: Id,
    session: Reading,
    framework: Annotated[FrameworkName, Query(alias="for", description="Who is to run it.")],
    strategy: StrategyId = None,
    seen: SeenTags = None,
) -> Response:
    """The answer, or any strategy of the tuning, as settings of another framework, with what that
    does otherwise; 409 with the reason where it cannot run the strategy."""
    return tagged(lambda: settings_document(session, tuning_id, framework, strategy), seen)


@router.get("/{tuning_id}/timeline", response_model=Timeline, responses=READ)
def get_timeline(
    tuning_id: Id,
    session: Reading,
    request: Request,
    strategy: StrategyId = None,
    seen: SeenTags = None,
) -> Response:
    """One iteration, message by message, predicted and measured: of the answer, or of any strategy
    of the tuning. The finalists and DDP are recorded."""
    from autosync.api.views import timeline_views  # loads numba: only when asked for

    def document() -> str:
        return timeline_views.timeline(session, tuning_id, strategy).model_dump_json()

    return tagged_once_ended(session, tuning_id, request, document, seen)


@router.get("/{tuning_id}/trace", response_class=Response, responses=TRACE)
def get_trace(
    tuning_id: Id,
    session: Reading,
    request: Request,
    strategy: StrategyId = None,
    seen: SeenTags = None,
) -> Response:
    """The same for ui.perfetto.dev and chrome://tracing."""
    from autosync.api.views import timeline_views  # loads numba: only when asked for

    def document() -> str:
        return timeline_views.trace(session, tuning_id, strategy)

    headers = {"Content-Disposition": 'attachment; filename="trace.json"'}
    return tagged_once_ended(session, tuning_id, request, document, seen, headers)


@router.get("/{tuning_id}/domain", response_class=Response, responses=DOMAIN)
def get_domain(tuning_id: Id, session: Reading, seen: SeenTags = None) -> Response:
    """The model, the cluster and the compute seconds that it is about, with what was measured of
    them."""
    return tagged(lambda: domain_document(session, tuning_id), seen)


@router.get("/{tuning_id}/measured", response_class=Response, responses=MEASURED)
def get_measured(tuning_id: Id, session: Reading, seen: SeenTags = None) -> Response:
    """Its measured strategies with their seconds, as far as it has come: `earlier` of another
    tuning."""
    return tagged(lambda: measured_document(session, tuning_id), seen)


@router.get("/{tuning_id}/events", response_model=None, responses=EVENTS)
def get_events(
    tuning_id: Id,
    session: Reading,
    database: DatabaseDep,
    feed: FeedDep,
    last: LastEvent = 0,
    after: Annotated[
        int | None,
        Query(ge=0, lt=2**53, description="Answer at once with what there is after this number."),
    ] = None,
    limit: Limit = 500,
) -> TuningEvents | StreamingResponse:
    """Progress as it happens (`progress`), and the end (`end`), as server-sent events. Goes on
    after `Last-Event-ID`; a comment every 15 s keeps a silent connection. With `after` a page of
    what there is, as JSON: 0 begins with the first event."""
    reports.tuning(session, tuning_id)
    if after is not None:
        return events_page(database, tuning_id, after, limit)
    return StreamingResponse(
        stream(feed, tuning_id, last), media_type="text/event-stream", headers=UNBUFFERED
    )


UNBUFFERED = {"X-Accel-Buffering": "no"}
"""Asks nginx to pass events on as they come."""
REFUSED = refusals(404, 409)


@router.patch("/{tuning_id}", responses=REFUSED)
def patch_tuning(tuning_id: Id, body: NotesSpec, database: DatabaseDep) -> Tuning:
    """Write tags, a note, or whether it is archived."""
    tags = None if body.tags is None else " ".join(body.tags)
    tuning_control.write_notes(database, tuning_id, tags, body.note, body.archived)
    with database.reading() as session:
        return reports.tuning(session, tuning_id)


@router.post("/{tuning_id}/cancel", responses=REFUSED)
def cancel_tuning(tuning_id: Id, database: DatabaseDep) -> ChangedTuning:
    """What runs for it is broken off within some two seconds. What was measured stays."""
    return _changed(tuning_id, job_queue.cancel(database, tuning_id))


@router.post("/{tuning_id}/pause", responses=REFUSED)
def pause_tuning(tuning_id: Id, database: DatabaseDep) -> ChangedTuning:
    """It stops after the trial that runs (`pausing`, then `paused`), and goes on when it is
    resumed."""
    return _changed(tuning_id, tuning_control.pause(database, tuning_id))


@router.post("/{tuning_id}/resume", responses=REFUSED)
def resume_tuning(tuning_id: Id, database: DatabaseDep, limits: LimitsDep) -> ChangedTuning:
    """Back into the queue: one that is paused, failed or was cancelled. What it measured counts."""
    return _changed(tuning_id, tuning_control.resume(database, tuning_id, limits))


def _changed(tuning_id: str, state: str) -> ChangedTuning:
    return ChangedTuning.model_validate({"id": tuning_id, "state": state})
