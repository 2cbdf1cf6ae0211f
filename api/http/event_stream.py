"""Progress of tunings to listeners: one reader of the database for all, and server-sent events."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from autosync.api.db.database import Database
from autosync.api.db.tables import FINAL, EventRow, TuningRow

POLL_SECONDS = 0.5
LONGEST_QUEUE = 1000
"""Events that wait for a slow listener; beyond them it is cut off, and comes back for the rest."""
BATCH = 200
"""Events that are read at once."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FeedItem:
    """An event, or the end of the tuning (event: None), with the state that goes with it."""

    event: EventRow | None
    state: str


Listener = asyncio.Queue[FeedItem | None]
"""None: it was too slow, or the service ends."""


@dataclass(slots=True)
class _Followed:
    """A tuning with listeners. last: number of the newest event that they were given."""

    last: int
    listeners: set[Listener] = field(default_factory=set)


class EventFeed:
    """What happens to the tunings that somebody follows, by one query each POLL_SECONDS and one
    more for each tuning with news, however many listen. Of one event loop; polls only while it has
    listeners."""

    def __init__(self, database: Database):
        self.database = database
        self._followed: dict[str, _Followed] = {}
        self._poller: asyncio.Task[None] | None = None
        self.polls = 0

    @property
    def count(self) -> int:
        """How many listen."""
        return sum(len(each.listeners) for each in self._followed.values())

    def listeners(self, tuning_id: str) -> frozenset[Listener]:
        followed = self._followed.get(tuning_id)
        return frozenset(followed.listeners) if followed else frozenset()

    def listen(self, tuning_id: str, last: int) -> tuple[Listener, int]:
        """What comes after the event of the number that is returned. It is `last`, or what others
        that follow the tuning were given last: what is between the two is not sent again."""
        followed = self._followed.setdefault(tuning_id, _Followed(last))
        listener: Listener = asyncio.Queue(LONGEST_QUEUE)
        followed.listeners.add(listener)
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        return listener, followed.last

    def leave(self, tuning_id: str, listener: Listener) -> None:
        followed = self._followed.get(tuning_id)
        if followed is None:
            return
        followed.listeners.discard(listener)
        if not followed.listeners:
            del self._followed[tuning_id]

    def close(self) -> None:
        """Everyone who listens is told to go."""
        for tuning_id in list(self._followed):
            self._cut_off(tuning_id)
        if self._poller is not None:
            self._poller.cancel()

    async def _poll(self) -> None:
        while self._followed:
            asked = dict(self._followed)
            seen = {tuning_id: each.last for tuning_id, each in asked.items()}
            self.polls += 1
            try:
                found = await run_in_threadpool(news, self.database, seen)
            except Exception:  # the database is away: it may come back
                log.exception("following tunings")
                await asyncio.sleep(POLL_SECONDS)
                continue
            for tuning_id, items in found.items():
                if self._followed.get(tuning_id) is asked[tuning_id]:
                    self._give(tuning_id, asked[tuning_id], items)
            if not any(len(items) >= BATCH for items in found.values()):
                await asyncio.sleep(POLL_SECONDS)

    def _give(self, tuning_id: str, followed: _Followed, items: list[FeedItem]) -> None:
        for item in items:
            if item.event is not None:
                followed.last = item.event.id
            for listener in list(followed.listeners):
                if listener.full():
                    followed.listeners.discard(listener)
                    _tell_to_go(listener)
                else:
                    listener.put_nowait(item)
        if items[-1].event is None:
            del self._followed[tuning_id]

    def _cut_off(self, tuning_id: str) -> None:
        for listener in self._followed.pop(tuning_id).listeners:
            _tell_to_go(listener)


def _tell_to_go(listener: Listener) -> None:
    while not listener.empty():
        listener.get_nowait()
    listener.put_nowait(None)


def news(database: Database, seen: dict[str, int]) -> dict[str, list[FeedItem]]:
    """Of tunings of which event `seen[id]` is known: later events, in order, and the end where
    all were told; only of those with news."""
    newest = (
        select(func.max(EventRow.id)).where(EventRow.tuning_id == TuningRow.id).scalar_subquery()
    )
    with database.reading() as session:
        query = select(TuningRow.id, TuningRow.state, newest).where(TuningRow.id.in_(seen))
        found: dict[str, list[FeedItem]] = {}
        for tuning_id, state, last in session.execute(query):
            events = []
            if last is not None and last > seen[tuning_id]:
                events = events_after(session, tuning_id, seen[tuning_id])
            items = [FeedItem(event, state) for event in events]
            if state in FINAL and len(events) < BATCH:
                items.append(FeedItem(None, state))
            if items:
                found[tuning_id] = items
        return found


def events_after(session: Session, tuning_id: str, last: int) -> list[EventRow]:
    """The first BATCH of them, in order."""
    query = select(EventRow).where(EventRow.tuning_id == tuning_id, EventRow.id > last)
    return list(session.scalars(query.order_by(EventRow.id).limit(BATCH)))


SILENCE_SECONDS = 15.0
"""After so long without an event a comment is sent, so that proxies keep the connection."""


async def stream(
    feed: EventFeed, tuning_id: str, last: int, follow: bool = True
) -> AsyncIterator[str]:
    """Events after number `last`, until the tuning has ended, or without `follow` those there are:
    what is past is read here, what comes is fed. Cut off where the reader is too slow, who asks
    again with the number it has."""
    last = min(last, await run_in_threadpool(_newest, feed.database, tuning_id))
    more = True
    while more:
        events, state = await run_in_threadpool(_missed, feed.database, tuning_id, last)
        for event in events:
            last = event.id
            yield _progress(event, state)
        more = len(events) == BATCH
    if state in FINAL or not follow:
        yield _end(state)
        return
    listener, told = feed.listen(tuning_id, last)
    try:
        while last < told:  # others were given these before
            events, state = await run_in_threadpool(_missed, feed.database, tuning_id, last)
            for event in events:
                last = event.id
                yield _progress(event, state)
        while True:
            try:
                item = await asyncio.wait_for(listener.get(), SILENCE_SECONDS)
            except TimeoutError:
                yield ": still here\n\n"
                continue
            if item is None:
                return
            if item.event is None:
                yield _end(item.state)
                return
            if item.event.id > last:
                last = item.event.id
                yield _progress(item.event, item.state)
    finally:
        feed.leave(tuning_id, listener)


def _newest(database: Database, tuning_id: str) -> int:
    query = select(func.max(EventRow.id)).where(EventRow.tuning_id == tuning_id)
    with database.reading() as session:
        return session.scalar(query) or 0


def _missed(database: Database, tuning_id: str, last: int) -> tuple[list[EventRow], str]:
    """The next events, and the state before they were read: where it is final, they are all."""
    with database.reading() as session:
        state = session.get_one(TuningRow, tuning_id).state
        return events_after(session, tuning_id, last), state


def _progress(event: EventRow, state: str) -> str:
    data = {
        "kind": event.kind,
        "message": event.message,
        "done": event.done,
        "total": event.total,
        "best_seconds": event.best_seconds,
        "state": state,
        "at": event.created_at,
    }
    return f"id: {event.id}\nevent: progress\ndata: {json.dumps(data)}\n\n"


def _end(state: str) -> str:
    return f"event: end\ndata: {json.dumps({'state': state})}\n\n"
