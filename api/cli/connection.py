"""The client that a command calls: of a service, or of the same application in this process over a
database, with a worker of its own where the command runs trials."""

import secrets
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from autosync.api.cli.console import warn
from autosync.errors import AutosyncError, NotFound

if TYPE_CHECKING:
    from autosync.api.client.rest_client import Client
    from autosync.api.db.database import Database

ATTEMPTS = 3
"""To reach a service: whoever types a command waits for it."""
POLL_SECONDS = 0.2
GIVEN_BACK_SECONDS = 1.5
"""After which a tuning that was stopped is given back, even if compiled code still runs."""


@dataclass(frozen=True, slots=True)
class Connection:
    """database: that of the application in this process; None where a service is asked, whose
    workers do the work."""

    client: "Client"
    database: "Database | None" = None


@contextmanager
def connected(
    db: str, url: str | None, *, create: bool = False, temporary: bool = False
) -> Iterator[Connection]:
    """The service at `url`, where there is one; else the application over the database.

    create: make the database where it is not there. temporary: use an empty one for the time of the
    command instead, since it stores nothing.

    Raises:
        NotFound: there is no such database. NotSupported: it has an older schema.
        AutosyncError: no service answers there.
    """
    if url is None:
        with tempfile.TemporaryDirectory(prefix="autosync-") as folder:
            empty = temporary and is_missing(db)
            place = f"sqlite:///{folder}/empty.db" if empty else db
            with _application(place, create, empty) as found:
                yield found
        return
    from autosync.api.client.rest_client import Client
    from autosync.api.client.service_errors import ServiceUnreachable

    try:
        with Client(url, attempts=ATTEMPTS) as client:
            yield Connection(client)
    except ServiceUnreachable as error:
        raise AutosyncError(
            error.message,
            thing="--url",
            value=error.value,
            remedy="Start one with `autosync serve`, or use its database with --db.",
        ) from None


@contextmanager
def _application(db: str, create: bool, empty: bool) -> Iterator[Connection]:
    """Without limits, and with a token that nobody else knows: whoever can write to the database
    may do everything with it. empty: it is not there, and goes with the command."""
    if not create and not empty:
        refuse_missing(db)
    from autosync.api.client.application_transport import ApplicationTransport
    from autosync.api.client.rest_client import Client
    from autosync.api.db.database import connect
    from autosync.api.db.schema_migration import make_passing_tables, require_schema
    from autosync.api.engine.service_limits import UNLIMITED
    from autosync.api.http.access.access_rules import Access
    from autosync.api.http.app import create_app

    if not empty:
        require_schema(db, create)
    database, token = connect(db), secrets.token_urlsafe(32)
    if empty:
        make_passing_tables(database)
    application = create_app(database, Access(token), UNLIMITED)
    try:
        with Client(token=token, attempts=1, transport=ApplicationTransport(application)) as client:
            yield Connection(client, database)
    finally:
        database.close()


def refuse_missing(db: str) -> None:
    """
    Raises:
        NotFound: it is an SQLite file that is not there.
    """
    if is_missing(db):
        raise NotFound(
            f"there is no database {db!r}.",
            thing="--db",
            value=db,
            remedy="`autosync db upgrade`, `autosync serve` and `autosync tune` make one; name it "
            "with --db, or a service with --url.",
        )


def is_missing(db: str) -> bool:
    """Whether it is an SQLite file that is not there."""
    usual = "sqlite:///"
    if db.startswith(usual) and db != usual and "?" not in db and "%" not in db:
        return not Path(db.removeprefix(usual)).exists()  # without SQLAlchemy, which loads slowly
    from autosync.api.db.database import parse_url

    parsed = parse_url(db)
    return parsed.get_backend_name() == "sqlite" and not Path(str(parsed.database)).exists()


def has_keys(db: str) -> bool:
    """Whether keys were ever made in the database, of whatever schema; an SQLite file that is not
    there has none."""
    if is_missing(db):
        return False
    from sqlalchemy import inspect

    from autosync.api.db.database import connect
    from autosync.api.engine import api_keys

    database = connect(db)
    try:
        with database.reading() as session:
            there = inspect(session.connection()).has_table("api_keys")
            return there and api_keys.has_keys(session)
    finally:
        database.close()


@contextmanager
def embedded_worker(at: Connection, tuning_id: str, stop: threading.Event) -> Iterator[None]:
    """A thread that claims the tuning and runs it, to its end or until `stop`: what runs is then
    broken off, and the tuning given back to the queue. Nothing where a service is asked."""
    if at.database is None:
        yield
        return
    done = threading.Event()
    thread = threading.Thread(
        target=_work, args=(at.database, tuning_id, stop, done), name="worker", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(GIVEN_BACK_SECONDS)


def _work(
    database: "Database", tuning_id: str, stop: threading.Event, done: threading.Event
) -> None:
    from sqlalchemy.exc import OperationalError

    from autosync.api.db.database import database_trouble
    from autosync.api.engine.job_queue import claim
    from autosync.api.engine.queue_worker import run_claim, this_worker
    from autosync.api.engine.work_queue import DatabaseQueue

    away = False
    while not stop.is_set() and not done.wait(POLL_SECONDS):
        try:
            if held := claim(database, this_worker(), tuning_id=tuning_id):
                run_claim(DatabaseQueue(database), held, stop)
            away = False
        except OperationalError as error:  # the database is away: the claim ends by its lease
            if not away:
                trouble = database_trouble(error)
                message = trouble.message if trouble else f"database: {error}"
                warn(f"{escape(message)} It is asked again; Ctrl-C stops.")
            away = True


def free_from_dead_worker(at: Connection, tuning_id: str) -> str:
    """End the lease of the tuning's worker, if it ran on this machine and was killed. Returns the
    name of a worker that still has the tuning; empty if none has, or if a service is asked."""
    if (database := at.database) is None:
        return ""
    from autosync.api.db.tables import ACTIVE, TuningRow
    from autosync.api.engine.job_queue import Claim, expire

    with database.reading() as session:
        tuning = session.get_one(TuningRow, tuning_id)
    if tuning.state not in ACTIVE:
        return ""
    host, _, process = (tuning.worker or "").rpartition(":")
    if host == socket.gethostname() and not Path(f"/proc/{process}").exists():
        expire(database, Claim(tuning.id, tuning.fence))
        return ""
    return tuning.worker or ""
