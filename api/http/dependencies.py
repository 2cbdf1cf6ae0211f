"""What routes ask for: the database, a transaction, a limited body, a page of a list."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, Header, Path, Query, Request
from sqlalchemy.orm import Session

from autosync.api.db.database import Database
from autosync.api.http.event_feed import EventFeed
from autosync.api.views.cursors import LONGEST_CURSOR


def database_of(request: Request) -> Database:
    database: Database = request.app.state.database
    return database


DatabaseDep = Annotated[Database, Depends(database_of)]


def feed_of(request: Request) -> EventFeed:
    feed: EventFeed = request.app.state.feed
    return feed


FeedDep = Annotated[EventFeed, Depends(feed_of)]


def _reading(database: DatabaseDep) -> Iterator[Session]:
    with database.reading() as session:
        yield session


async def _body(request: Request) -> bytes:
    return await request.body()  # limited by `autosync.api.http.body_limits.BodyLimit`


Reading = Annotated[Session, Depends(_reading, scope="function")]
Body = Annotated[bytes, Depends(_body)]
Id = Annotated[str, Path(max_length=200)]
Number = Annotated[int, Path(ge=0, lt=2**31, description="Of a version; 0 is the bundled one.")]
Limit = Annotated[int, Query(ge=1, le=500, description="How many, at most.")]
Cursor = Annotated[
    str | None,
    Query(max_length=LONGEST_CURSOR, description="`next` of the page before; none for the first."),
]
LastEvent = Annotated[int, Header(alias="Last-Event-ID", ge=0, lt=2**53)]
