"""What is done to a tuning: cancel, pause, resume, and write tags and a note beside it."""

from fastapi import APIRouter

from autosync.api.engine import tuning_notes, tuning_pauses, tuning_queue
from autosync.api.http.dependencies import DatabaseDep, Id
from autosync.api.http.openapi import refusals
from autosync.api.http.schemas import ChangedTuning
from autosync.api.spec import NotesSpec
from autosync.api.views import reports
from autosync.api.views.tuning_schemas import Tuning

router = APIRouter(prefix="/v1/tunings", tags=["tunings"])
REFUSED = refusals(404, 409)


@router.patch("/{tuning_id}", responses=REFUSED)
def patch_tuning(tuning_id: Id, body: NotesSpec, database: DatabaseDep) -> Tuning:
    """Write tags, a note, or whether it is archived."""
    tags = None if body.tags is None else " ".join(body.tags)
    tuning_notes.write_notes(database, tuning_id, tags, body.note, body.archived)
    with database.reading() as session:
        return reports.tuning(session, tuning_id)


@router.post("/{tuning_id}/cancel", responses=REFUSED)
def cancel_tuning(tuning_id: Id, database: DatabaseDep) -> ChangedTuning:
    """What runs for it is broken off within some two seconds. What was measured stays."""
    return _changed(tuning_id, tuning_queue.cancel(database, tuning_id))


@router.post("/{tuning_id}/pause", responses=REFUSED)
def pause_tuning(tuning_id: Id, database: DatabaseDep) -> ChangedTuning:
    """It stops after the trial that runs (`pausing`, then `paused`), and goes on when it is
    resumed."""
    return _changed(tuning_id, tuning_pauses.pause(database, tuning_id))


@router.post("/{tuning_id}/resume", responses=REFUSED)
def resume_tuning(tuning_id: Id, database: DatabaseDep) -> ChangedTuning:
    """Back into the queue: one that is paused, failed or was cancelled. What it measured counts."""
    return _changed(tuning_id, tuning_pauses.resume(database, tuning_id))


def _changed(tuning_id: str, state: str) -> ChangedTuning:
    return ChangedTuning.model_validate({"id": tuning_id, "state": state})
