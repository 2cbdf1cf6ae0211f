"""Where tunings are read: a database, or a service that has one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from autosync.api.cli.tuning_lookup import the_one
from autosync.environment import TOKEN_VARIABLE
from autosync.errors import AutosyncError

if TYPE_CHECKING:
    from autosync.api.cli.progress import ProgressEvent
    from autosync.api.cli.rest_client import Client
    from autosync.api.db.database import Database
    from autosync.api.views.tuning_schemas import RankedStrategies, Tuning

LOOKED_THROUGH = 500
"""Tunings of a service among which the beginning of an id is looked for, the newest."""
POLL_SECONDS = 0.2


class TuningSource(Protocol):
    """Tunings by the whole id, but for `find`."""

    def latest(self, count: int) -> "list[Tuning]":
        """The newest first."""
        ...

    def find(self, prefix: str) -> str:
        """The id that begins so. Raises NotFound or InvalidInput where it is not one."""
        ...

    def tuning(self, tuning_id: str) -> "Tuning": ...

    def strategies(self, tuning_id: str) -> "RankedStrategies": ...

    def cancel(self, tuning_id: str) -> str:
        """Its state from then on. Raises AutosyncError where it has ended."""
        ...

    def events(self, tuning_id: str, follow: bool) -> "Iterator[ProgressEvent]":
        """Oldest first; follow: also those to come, until the tuning has ended."""
        ...


@contextmanager
def tuning_source(db: str, url: str | None) -> Iterator[TuningSource]:
    """The service at `url`, where there is one; else the database.

    Raises:
        NotFound: there is no such database. AutosyncError: no service answers there.
    """
    if url is None:
        from autosync.api.cli.open_database import opened

        with opened(db) as database:
            yield StoredTunings(database)
        return
    import httpx

    from autosync.api.cli.rest_client import Client

    token = os.environ.get(TOKEN_VARIABLE)
    headers = {"Authorization": f"Bearer {token}"} if token else None
    address = url.rstrip("/")
    try:
        with httpx.Client(base_url=address, headers=headers, timeout=60.0) as http:
            yield ServedTunings(Client(address, http))
    except (httpx.TransportError, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise AutosyncError(
            f"no service answers at {address!r}: {error}.",
            thing="--url",
            value=address,
            remedy="Start one with `autosync serve`, or read its database with --db.",
        ) from None


@dataclass(frozen=True, slots=True)
class StoredTunings:
    """Those of a database."""

    database: "Database"

    def latest(self, count: int) -> "list[Tuning]":
        from autosync.api.views import reports

        with self.database.reading() as session:
            return reports.tunings(session, count).items

    def find(self, prefix: str) -> str:
        from autosync.api.cli.tuning_lookup import find_tuning

        return find_tuning(self.database, prefix).id

    def tuning(self, tuning_id: str) -> "Tuning":
        from autosync.api.views import reports

        with self.database.reading() as session:
            return reports.tuning(session, tuning_id)

    def strategies(self, tuning_id: str) -> "RankedStrategies":
        from autosync.api.views import reports

        with self.database.reading() as session:
            return reports.ranked_strategies(session, tuning_id)

    def cancel(self, tuning_id: str) -> str:
        from autosync.api.engine import tuning_queue

        return tuning_queue.cancel(self.database, tuning_id)

    def events(self, tuning_id: str, follow: bool) -> "Iterator[ProgressEvent]":
        import time

        from autosync.api.cli.in_process_tuning import EventReader
        from autosync.api.db.tables import FINAL

        reader = EventReader(self.database, tuning_id)
        while True:
            ended = not follow or reader.tuning().state in FINAL
            yield from reader.unseen()
            if ended:
                return
            time.sleep(POLL_SECONDS)


@dataclass(frozen=True, slots=True)
class ServedTunings:
    """Those of a service."""

    client: "Client"

    def latest(self, count: int) -> "list[Tuning]":
        return self.client.tunings(count)

    def find(self, prefix: str) -> str:
        known = [(each.id, each.state) for each in self.client.tunings(LOOKED_THROUGH)]
        return the_one(prefix, known, "This service has none.")

    def tuning(self, tuning_id: str) -> "Tuning":
        return self.client.tuning(tuning_id)

    def strategies(self, tuning_id: str) -> "RankedStrategies":
        return self.client.strategies(tuning_id)

    def cancel(self, tuning_id: str) -> str:
        return self.client.cancel(tuning_id)

    def events(self, tuning_id: str, follow: bool) -> "Iterator[ProgressEvent]":
        return self.client.events(tuning_id, follow)
