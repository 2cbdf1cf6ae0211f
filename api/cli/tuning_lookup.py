"""Finding a tuning by the beginning of its id, and its bundle."""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autosync.errors import InvalidInput, NotFound, NotSupported

if TYPE_CHECKING:
    from autosync.api.db.database import Database
    from autosync.api.db.tables import TuningRow
    from autosync.api.views.schemas import RankedStrategy

SHORTEST = 4


def find_tuning(database: "Database", prefix: str) -> "TuningRow":
    """The one tuning whose id begins so. Raises as `the_one`."""
    from sqlalchemy import select

    from autosync.api.db.tables import TuningRow

    newest = select(TuningRow.id, TuningRow.state).order_by(TuningRow.created_at.desc())
    with database.reading() as session:
        known = [(row.id, row.state) for row in session.execute(newest)]
        found = the_one(prefix, known, "This database has none; check --db.")
        row = session.get_one(TuningRow, found)
        session.expunge_all()
    return row


def the_one(prefix: str, known: Sequence[tuple[str, str]], none: str) -> str:
    """The id that begins so. known: (id, state), the newest first. none: said where that is empty.

    Raises:
        NotFound: there is none; lists the latest. InvalidInput: there are several.
    """
    latest = ", ".join(f"{each[:8]} ({state})" for each, state in known[:5])
    remedy = f"The latest: {latest}." if latest else none
    return _beginning_so("tuning", prefix, [each for each, _ in known], remedy)


def the_strategy(prefix: str, ranked: "Sequence[RankedStrategy]") -> str:
    """The id, among a tuning's strategies, that begins so. Raises as `the_one`."""
    known = [each.strategy_id for each in ranked]
    fastest = ", ".join(each[:8] for each in known[:5])
    remedy = f"The fastest: {fastest}; `autosync show` lists them." if known else "It has none yet."
    return _beginning_so("strategy", prefix, known, remedy)


def _beginning_so(kind: str, prefix: str, known: Sequence[str], none: str) -> str:
    usable = len(prefix) >= SHORTEST
    found = [each for each in known if usable and each.startswith(prefix.lower())]
    if not found:
        raise NotFound(
            f"no {kind} here has an id that begins with {prefix!r}.",
            thing=kind,
            value=prefix,
            remedy=none,
        )
    if len(found) > 1:
        several = {"tuning": "tunings", "strategy": "strategies"}[kind]
        raise InvalidInput(
            f"{len(found)} {several} have ids that begin with {prefix!r}.",
            thing=kind,
            value=prefix,
            remedy=f"Give more of it: {', '.join(each[:12] for each in found[:5])}.",
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
