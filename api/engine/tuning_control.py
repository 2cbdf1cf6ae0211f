"""Pausing a tuning and letting it go on, and what people write beside it."""

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from autosync.api.db.database import Database, now_seconds
from autosync.api.db.lookup import stored
from autosync.api.db.tables import FINAL, EventRow, TrialRow, TuningRow
from autosync.api.engine import job_queue
from autosync.api.engine.database_store import add_event, check_fence
from autosync.api.engine.job_queue import Claim
from autosync.api.engine.service_limits import UNLIMITED, ServiceLimits
from autosync.api.engine.simulator_store import lock_simulator, lock_usable_version
from autosync.api.engine.submission import check_queue
from autosync.api.spec import LONGEST_NOTE, LONGEST_TAG, MOST_TAGS
from autosync.errors import InvalidInput, NotSupported
from autosync.search.loop.outcome import TuningEvent

GOES_ON = "goes on"
"""What an event says where a tuning is resumed."""
MOST_CLAIMS = 50
"""A tuning that was claimed this often, beyond once for each of its trials, and never ended takes
its worker down with it. Whenever somebody resumes it, it may be claimed as often again."""


def pause(database: Database, tuning_id: str) -> str:
    """Its new state: `paused` at once where no worker has it, else `pausing` until the trial that
    runs has ended. It goes on when it is resumed.

    Raises:
        NotFound: no such tuning. NotSupported: it has ended, or is being cancelled.
    """
    with database.writing() as session:
        tuning = _locked(session, tuning_id)
        if tuning.state in (*FINAL, "cancelling"):
            raise _impossible(tuning, "paused", "Only a tuning that waits or runs can be paused.")
        held = job_queue.is_held(tuning, session.scalars(select(now_seconds())).one())
        if not held and tuning.state != "paused":
            tuning.state, tuning.lease_until, tuning.worker = "paused", None, None
            add_event(session, tuning_id, TuningEvent("waiting", "paused"))
        elif tuning.state == "running":
            tuning.state = "pausing"
            add_event(session, tuning_id, TuningEvent("waiting", "pauses after this trial"))
        return str(tuning.state)


def resume(database: Database, tuning_id: str, limits: ServiceLimits = UNLIMITED) -> str:
    """Its new state. It goes on with what it measured, whether it was paused, failed or was
    cancelled; one that waits or runs is left as it is. One that had ended is listed again, and
    ranks with the version of the simulator in use where its own was removed meanwhile; it needs a
    place among those of its client that `limits` let wait.

    Raises:
        NotFound: no such tuning, or the simulator that it names was removed. InvalidInput: that
            reads features of another version. NotSupported: it has finished, or is being cancelled.
        TryLater: it had ended, and too many tunings of its client wait already.
    """
    with database.writing() as session:
        tuning = _locked(session, tuning_id)
        before = tuning.state
        if before == "finished":
            raise _impossible(tuning, "resumed", "Start another one.")
        if before == "cancelling":
            if job_queue.is_held(tuning, session.scalars(select(now_seconds())).one()):
                raise _impossible(tuning, "resumed", "Resume it once it is cancelled.")
            before = "cancelled"  # its worker is gone, and there may be none to end it
            tuning.lease_until, tuning.worker = None, None
        if before in ("queued", "running"):
            return before
        add_event(session, tuning_id, TuningEvent("waiting", GOES_ON))
        if before in FINAL:
            job_queue.lock_client(session, tuning.client)
            check_queue(session, tuning.client, limits)
            lock_simulator(session, tuning.simulator)
            tuning.archived, tuning.error, tuning.finished_at = False, None, None
            tuning.held_seconds = 0.0  # it has all its time before it
            _replace_unusable_version(session, tuning)
        tuning.state = "running" if before == "pausing" else "queued"
        return tuning.state


def refuse_hopeless(session: Session, held: Claim) -> None:
    """Raises NotSupported where a tuning was claimed too often; see MOST_CLAIMS."""
    if held.fence <= MOST_CLAIMS:
        return
    trials = select(func.count()).select_from(TrialRow).where(TrialRow.tuning_id == held.job_id)
    resumed = select(func.count()).select_from(EventRow).where(EventRow.tuning_id == held.job_id)
    resumed = resumed.where(EventRow.kind == "waiting", EventRow.message == GOES_ON)
    most = MOST_CLAIMS * (1 + session.scalars(resumed).one()) + session.scalars(trials).one()
    if held.fence > most:
        raise job_queue.keeps_dying(held)


def use_readable_version(database: Database, held: Claim) -> None:
    """Let the version of the simulator in use rank a tuning that waited for its worker while
    AutoSync was upgraded, where its own version reads features of before. Raises LeaseLost."""
    with database.writing() as session:
        tuning = session.get_one(TuningRow, held.job_id, with_for_update=True)
        check_fence(tuning, held.fence)
        _replace_unusable_version(session, tuning)


def _replace_unusable_version(session: Session, tuning: TuningRow) -> None:
    before = tuning.simulator_version
    if before is None or (usable := lock_usable_version(session, before)) == before:
        return
    tuning.simulator_version = usable
    message = f"version {before} of the simulator can no longer be used: version {usable} ranks"
    add_event(session, tuning.id, TuningEvent("waiting", message))


def _locked(session: Session, tuning_id: str) -> TuningRow:
    """Nobody else changes it until the end of the transaction. Raises NotFound."""
    tuning = stored(session, TuningRow, tuning_id, "tuning")
    session.refresh(tuning, with_for_update=True)
    return tuning


def _impossible(tuning: TuningRow, done: str, remedy: str) -> NotSupported:
    return NotSupported(
        f"tuning {tuning.id} is {tuning.state} and cannot be {done}.",
        thing="tuning",
        value=tuning.state,
        remedy=remedy,
    )


def write_notes(
    database: Database,
    tuning_id: str,
    tags: str | None = None,
    note: str | None = None,
    archived: bool | None = None,
) -> None:
    """What is None stays as it is. tags: words between spaces or commas; one that comes twice is
    kept once. archived: out of the lists, or back in.

    Raises:
        NotFound: no such tuning. InvalidInput: too many tags, or too long ones. NotSupported: it
            has not ended, so nobody should lose sight of it.
    """
    words = None if tags is None else _checked_tags(tags)
    if note is not None and (len(note) > LONGEST_NOTE or "\0" in note):
        why = f"the note has {len(note)} characters, or one that is no text"
        raise _refused("note", why, f"Use at most {LONGEST_NOTE} characters of text.")
    with database.writing() as session:
        tuning = _locked(session, tuning_id)
        if archived and tuning.state not in FINAL:
            raise NotSupported(
                f"tuning {tuning_id} is {tuning.state} and cannot be archived.",
                thing="tuning",
                value=tuning.state,
                remedy="Cancel it first, or wait until it has ended.",
            )
        tuning.tags = tuning.tags if words is None else " ".join(words)
        tuning.note = tuning.note if note is None else note.strip()
        tuning.archived = tuning.archived if archived is None else archived


def _checked_tags(tags: str) -> list[str]:
    words = list(dict.fromkeys(tags.replace(",", " ").split()))
    if len(words) > MOST_TAGS:
        raise _refused("tags", f"there are {len(words)} tags", f"Give at most {MOST_TAGS}.")
    for word in words:
        if len(word) > LONGEST_TAG or not word.isprintable():
            why = f"the tag {word[:LONGEST_TAG]!r} is too long or does not print"
            raise _refused("tags", why, f"Use at most {LONGEST_TAG} printable characters.")
    return words


def _refused(thing: str, why: str, remedy: str) -> InvalidInput:
    return InvalidInput(f"{why}.", thing=thing, remedy=remedy)
