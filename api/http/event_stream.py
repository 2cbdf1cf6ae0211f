"""A tuning's progress as server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator

from sqlalchemy import func, select
from starlette.concurrency import run_in_threadpool

from autosync.api.db.database import Database
from autosync.api.db.tables import FINAL, EventRow, TuningRow
from autosync.api.http.event_feed import BATCH, EventFeed, events_after

SILENCE_SECONDS = 15.0
"""After so long without an event a comment is sent, so that proxies keep the connection."""


async def stream(feed: EventFeed, tuning_id: str, last: int) -> AsyncIterator[str]:
    """Events after number `last`, until the tuning has ended: what is past is read here, what
    comes is fed. Cut off where the reader is too slow, who asks again with the number it has."""
    last = min(last, await run_in_threadpool(_newest, feed.database, tuning_id))
    more = True
    while more:
        events, state = await run_in_threadpool(_missed, feed.database, tuning_id, last)
        for event in events:
            last = event.id
            yield _progress(event, state)
        more = len(events) == BATCH
    if state in FINAL:
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
