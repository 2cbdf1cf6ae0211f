"""Finding a tuning by the beginning of its id, and its bundle."""

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from autosync.errors import InvalidInput, NotFound, NotSupported

if TYPE_CHECKING:
    from autosync.api.db.database import Database
    from autosync.api.db.tables import TuningRow

SHORTEST = 4


def find_tuning(database: "Database", prefix: str) -> "TuningRow":
    """The one tuning whose id begins so.

    Raises:
        NotFound: there is none; lists the latest. InvalidInput: there are several.
    """
    from sqlalchemy import select

    from autosync.api.db.tables import TuningRow

    with database.reading() as session:
        rows = session.scalars(select(TuningRow).order_by(TuningRow.created_at.desc())).all()
        session.expunge_all()
    usable = len(prefix) >= SHORTEST
    found = [row for row in rows if usable and row.id.startswith(prefix.lower())]
    if not found:
        latest = ", ".join(f"{row.id[:8]} ({row.state})" for row in rows[:5])
        raise NotFound(
            f"no tuning here has an id that begins with {prefix!r}.",
            thing="tuning",
            value=prefix,
            remedy=f"The latest: {latest}." if latest else "This database has none; check --db.",
        )
    if len(found) > 1:
        raise InvalidInput(
            f"{len(found)} tunings have ids that begin with {prefix!r}.",
            thing="tuning",
            value=prefix,
            remedy=f"Give more of it: {', '.join(row.id[:12] for row in found[:5])}.",
        )
    return found[0]


def free_from_dead_worker(database: "Database", tuning: "TuningRow") -> bool:
    """End the lease of a worker of this machine that was killed; whether no worker has it."""
    from autosync.api.db.tables import ACTIVE
    from autosync.api.engine.tuning_queue import Claim, expire

    if tuning.state not in ACTIVE:
        return True
    host, _, process = (tuning.worker or "").rpartition(":")
    if host != socket.gethostname() or Path(f"/proc/{process}").exists():
        return False
    expire(database, Claim(tuning.id, tuning.fence))
    return True


def bundle_text(database: "Database", tuning_id: str) -> str:
    """The shipped bundle as JSON.

    Raises:
        NotSupported: the tuning has no answer (yet).
    """
    from autosync.api.db.tables import OutcomeRow, TuningRow

    with database.reading() as session:
        outcome = session.get(OutcomeRow, tuning_id)
        if outcome is not None:
            return outcome.bundle
        state = session.get_one(TuningRow, tuning_id).state
    raise NotSupported(
        f"tuning {tuning_id[:8]} is {state} and has no answer.",
        thing="tuning",
        value=state,
        remedy=f"Go on with `autosync tune --resume {tuning_id[:8]}`.",
    )
