"""Where tunings are read: a database, or a service that has one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from autosync.api.cli.tuning_lookup import the_one
from autosync.errors import AutosyncError

if TYPE_CHECKING:
    from autosync.api.cli.progress import ProgressEvent
    from autosync.api.client.rest_client import Client
    from autosync.api.client.tuning_events import ServiceEvent
    from autosync.api.db.database import Database
    from autosync.api.views.schemas import RankedStrategies, Tuning
    from autosync.exports.settings import FrameworkName, FrameworkSettings

LOOKED_THROUGH = 500
"""Tunings of a service among which the beginning of an id is looked for, the newest."""
POLL_SECONDS = 0.2
ATTEMPTS = 3
"""To reach a service: whoever types a command waits for it."""


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

    def pause(self, tuning_id: str) -> str:
        """Its state from then on. Raises AutosyncError where it has ended."""
        ...

    def resume(self, tuning_id: str) -> str:
        """Its state from then on. Raises AutosyncError where it cannot go on."""
        ...

    def bundle(self, tuning_id: str, strategy_id: str | None) -> str:
        """Of the answer, or of one of its strategies, as JSON. Raises AutosyncError."""
        ...

    def settings(
        self, tuning_id: str, framework: "FrameworkName", strategy_id: str | None
    ) -> "FrameworkSettings":
        """As `bundle`, for a framework. Raises AutosyncError where that cannot run it."""
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
    from autosync.api.client.rest_client import Client
    from autosync.api.client.service_errors import ServiceUnreachable

    try:
        with Client(url, attempts=ATTEMPTS) as client:
            yield ServedTunings(client)
    except ServiceUnreachable as error:
        raise AutosyncError(
            error.message,
            thing="--url",
            value=error.value,
            remedy="Start one with `autosync serve`, or read its database with --db.",
        ) from None


def progress_event(event: "ServiceEvent") -> "ProgressEvent":
    """As progress is shown."""
    from autosync.api.cli.progress import ProgressEvent

    best = event.best_seconds
    return ProgressEvent(event.kind, event.message, event.done, event.total, best, event.at)


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

    def pause(self, tuning_id: str) -> str:
        from autosync.api.engine import tuning_control

        return tuning_control.pause(self.database, tuning_id)

    def resume(self, tuning_id: str) -> str:
        from autosync.api.engine import tuning_control

        return tuning_control.resume(self.database, tuning_id)

    def bundle(self, tuning_id: str, strategy_id: str | None) -> str:
        from autosync.api.cli.tuning_lookup import bundle_text
        from autosync.api.views.exports import bundle_document

        if strategy_id is None:
            return bundle_text(self.database, tuning_id)
        with self.database.reading() as session:
            return bundle_document(session, tuning_id, strategy_id)

    def settings(
        self, tuning_id: str, framework: "FrameworkName", strategy_id: str | None
    ) -> "FrameworkSettings":
        from autosync.api.views.exports import settings_document
        from autosync.documents import from_json
        from autosync.exports.settings import FrameworkSettings

        with self.database.reading() as session:
            text = settings_document(session, tuning_id, framework, strategy_id)
        return from_json(FrameworkSettings, text)

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
        return self.client.tunings.list(limit=count).items

    def find(self, prefix: str) -> str:
        known = [(each.id, each.state) for each in self.latest(LOOKED_THROUGH)]
        return the_one(prefix, known, "This service has none.")

    def tuning(self, tuning_id: str) -> "Tuning":
        return self.client.tunings.get(tuning_id)

    def strategies(self, tuning_id: str) -> "RankedStrategies":
        return self.client.tunings.strategies(tuning_id)

    def cancel(self, tuning_id: str) -> str:
        return self.client.tunings.cancel(tuning_id).state

    def pause(self, tuning_id: str) -> str:
        return self.client.tunings.pause(tuning_id).state

    def resume(self, tuning_id: str) -> str:
        return self.client.tunings.resume(tuning_id).state

    def bundle(self, tuning_id: str, strategy_id: str | None) -> str:
        return self.client.tunings.bundle_text(tuning_id, strategy=strategy_id)

    def settings(
        self, tuning_id: str, framework: "FrameworkName", strategy_id: str | None
    ) -> "FrameworkSettings":
        return self.client.tunings.settings(tuning_id, framework, strategy=strategy_id)

    def events(self, tuning_id: str, follow: bool) -> "Iterator[ProgressEvent]":
        for event in self.client.tunings.events(tuning_id, follow=follow):
            yield progress_event(event)
