"""Progress of tunings as server-sent events: one poller of the database wakes all who listen."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import and_, case, func, select
from starlette.concurrency import run_in_threadpool

from autosync.api.db.database import Database
from autosync.api.db.tables import FINAL, EventRow, TuningRow
from autosync.api.views.event_schemas import TuningEvents

POLL_SECONDS = 0.5
SILENCE_SECONDS = 15.0
"""After so long without an event a comment is sent, so that proxies keep the connection."""
BATCH = 200
"""Events that are read at once."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Batch:
    """The next events of a tuning, and its state before they were read: where that is final and the
    batch is not full, they are the last. after: the number of the event before them."""

    events: list[EventRow]
    state: str
    after: int


@dataclass(slots=True)
class _Followed:
    """A tuning with listeners. head: number of its newest event, and its state, at the last poll.
    changed: set, and replaced, when the head changes. reads: of the database since the last poll,
    by the number that they begin after; listeners share them."""

    listeners: int = 0
    head: tuple[int, str] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    reads: "dict[int, asyncio.Future[Batch]]" = field(default_factory=dict)

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class EventFeed:
    """Polls the database for all tunings that somebody follows: one query each POLL_SECONDS, and
    one more for each tuning with news, however many listen. Of one event loop."""

    def __init__(self, database: Database):
        self.database = database
        self.closed = False
        self.polls = 0
        self._followed: dict[str, _Followed] = {}
        self._poller: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """How many listen."""
        return sum(each.listeners for each in self._followed.values())

    @contextmanager
    def following(self, tuning_id: str) -> Iterator[_Followed]:
        """The tuning is polled while the block runs."""
        followed = self._followed.setdefault(tuning_id, _Followed())
        followed.listeners += 1
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        try:
            yield followed
        finally:
            followed.listeners -= 1
            if not followed.listeners:
                self._followed.pop(tuning_id, None)

    async def read(self, followed: _Followed, tuning_id: str, last: int) -> Batch:
        """What comes after event number `last`."""
        if last not in followed.reads:
            task = run_in_threadpool(events_after, self.database, tuning_id, last)
            followed.reads[last] = asyncio.ensure_future(task)
        return await asyncio.shield(followed.reads[last])

    def close(self) -> None:
        """Every stream ends."""
        self.closed = True
        if self._poller is not None:
            self._poller.cancel()
        for followed in self._followed.values():
            followed.wake()

    async def _poll(self) -> None:
        while self._followed:
            self.polls += 1
            try:
                heads = await run_in_threadpool(newest, self.database, list(self._followed))
            except Exception:  # the database is away: it may come back
                log.exception("following tunings")
                heads = {}
            for tuning_id, followed in self._followed.items():
                followed.reads.clear()
                if (head := heads.get(tuning_id, followed.head)) != followed.head:
                    followed.head = head
                    followed.wake()
            await asyncio.sleep(POLL_SECONDS)


def newest(database: Database, tuning_ids: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Of each tuning the number of its newest event, and its state."""
    last = select(func.max(EventRow.id)).where(EventRow.tuning_id == TuningRow.id)
    query = select(TuningRow.id, func.coalesce(last.scalar_subquery(), 0), TuningRow.state)
    with database.reading() as session:
        rows = session.execute(query.where(TuningRow.id.in_(tuning_ids)))
        return {tuning_id: (number, state) for tuning_id, number, state in rows}


def events_after(database: Database, tuning_id: str, last: int, most: int = BATCH) -> Batch:
    """The first `most` events after number `last`, or after the newest where that is lower. One
    statement, so that events and state are of one moment."""
    newest_number = select(func.coalesce(func.max(EventRow.id), 0))
    known = newest_number.where(EventRow.tuning_id == tuning_id).scalar_subquery()
    after = case((known < last, known), else_=last)
    later = and_(EventRow.tuning_id == TuningRow.id, EventRow.id > after)
    query = (
        select(TuningRow.state, after, EventRow)
        .outerjoin(EventRow, later)
        .where(TuningRow.id == tuning_id)
        .order_by(EventRow.id)
        .limit(most)
    )
    with database.reading() as session:
        rows = session.execute(query).all()
    state, begins_after, _ = rows[0]  # at least one: of the tuning without a later event
    return Batch([event for _, _, event in rows if event is not None], state, begins_after)


def events_page(database: Database, tuning_id: str, last: int, most: int) -> TuningEvents:
    """The first `most` events of a tuning that there is after number `last`."""
    batch = events_after(database, tuning_id, last, most + 1)
    items = [_event(event) for event in batch.events[:most]]
    more = len(batch.events) > most
    return TuningEvents.model_validate(
        {"tuning_id": tuning_id, "state": batch.state, "items": items, "more": more}
    )


async def stream(feed: EventFeed, tuning_id: str, last: int) -> AsyncIterator[str]:
    """Events after number `last`, until the tuning has ended or the feed is closed."""
    with feed.following(tuning_id) as followed:
        while not feed.closed:
            changed = followed.changed  # before the read, so that no change is missed
            batch = await feed.read(followed, tuning_id, last)
            last = batch.after
            for event in batch.events:
                last = event.id
                yield _progress(event, batch.state)
            if len(batch.events) == BATCH:
                continue
            if batch.state in FINAL:
                yield f"event: end\ndata: {json.dumps({'state': batch.state})}\n\n"
                return
            while not changed.is_set():
                try:
                    await asyncio.wait_for(changed.wait(), SILENCE_SECONDS)
                except TimeoutError:
                    yield ": still here\n\n"


def _progress(event: EventRow, state: str) -> str:
    data = {**_event(event), "state": state}
    return f"id: {data.pop('id')}\nevent: progress\ndata: {json.dumps(data)}\n\n"


def _event(event: EventRow) -> dict[str, Any]:
    return {
        "id": event.id,
        "kind": event.kind,
        "message": event.message,
        "done": event.done,
        "total": event.total,
        "best_seconds": event.best_seconds,
        "at": event.created_at,
    }
