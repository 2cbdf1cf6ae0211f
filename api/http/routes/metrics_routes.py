"""Numbers to watch, for Prometheus."""

from fastapi import APIRouter, Request, Response

from autosync.api.http.dependencies import FeedDep, Reading
from autosync.api.http.request_log import TEXT_FORMAT, Labels, RequestMetrics, gauge_lines
from autosync.api.views.service_health import service_counts

router = APIRouter(include_in_schema=False)


@router.get("/metrics")
def get_metrics(request: Request, session: Reading, feed: FeedDep) -> Response:
    """Of the database, and of this process since it began."""
    found = service_counts(session)
    requests: RequestMetrics = request.app.state.metrics
    by_state: dict[Labels, float] = {
        (("state", state),): count for state, count in found.tunings.items()
    }
    lines = [
        *gauge_lines("autosync_tunings", "Tunings by state.", by_state),
        *gauge_lines("autosync_workers", "Workers that live.", {(): found.workers}),
        *gauge_lines(
            "autosync_oldest_queued_seconds",
            "How long the tuning that waits longest has waited.",
            {(): found.oldest_queued_seconds},
        ),
        *gauge_lines("autosync_listeners", "Who follows events.", {(): feed.count}),
        *requests.lines(),
    ]
    return Response("\n".join([*lines, ""]), media_type=TEXT_FORMAT)
