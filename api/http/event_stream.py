"""A tuning's progress as server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator

from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from autosync.api.db.database import Database
from autosync.api.db.tables import FINAL, EventRow, TuningRow

POLL_SECONDS = 0.5
SILENCE_SECONDS = 15.0
"""After so long without an event a comment is sent, so that proxies keep the connection."""
BATCH = 200


async def stream(database: Database, tuning_id: str, last: int) -> AsyncIterator[str]:
    """Events after number `last`, until the tuning has ended."""
    silent = 0.0
    while True:
        events, state = await run_in_threadpool(_after, database, tuning_id, last)
        for event in events:
            last, silent = event.id, 0.0
            yield _progress(event, state)
        if state in FINAL and len(events) < BATCH:
            yield f"event: end\ndata: {json.dumps({'state': state})}\n\n"
            return
        if len(events) == BATCH:
            continue
        if silent >= SILENCE_SECONDS:
            silent = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(POLL_SECONDS)
        silent += POLL_SECONDS


def _after(database: Database, tuning_id: str, last: int) -> tuple[list[EventRow], str]:
    query = (
        select(EventRow)
        .where(EventRow.tuning_id == tuning_id, EventRow.id > last)
        .order_by(EventRow.id)
        .limit(BATCH)
    )
    with database.reading() as session:
        state = session.get_one(TuningRow, tuning_id).state
        return list(session.scalars(query)), state


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
