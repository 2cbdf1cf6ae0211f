"""What routes ask for: the database, a transaction, a limited body, a page of a list."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Header, Path, Query, Request, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute
from sqlalchemy.orm import Session

from autosync.api.db.database import Database
from autosync.api.engine.service_limits import ServiceLimits
from autosync.api.http.access.access_rules import Caller
from autosync.api.http.event_stream import EventFeed
from autosync.api.views.paging import LONGEST_CURSOR, SortKey
from autosync.errors import InvalidInput


async def refuse_unknown_parameters(request: Request) -> None:
    """Of paths in the OpenAPI document, which says what each takes.

    Raises:
        InvalidInput: names the parameter.
    """
    if not request.query_params:
        return
    known = _known(request)
    for name, times in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in known:
            taken = f"It takes {', '.join(known)}." if known else "It takes none."
            raise InvalidInput(
                f"there is no query parameter {name[:80]!r} here.",
                thing=name[:80],
                value=request.query_params[name],
                remedy=taken,
            )
        if times > 1:
            raise InvalidInput(
                f"the query parameter {name!r} is given {times} times.",
                thing=name,
                value=request.query_params.getlist(name),
                remedy="Give it once.",
            )


def _known(request: Request) -> list[str]:
    route: APIRoute = request.scope["route"]
    fields = get_flat_params(route.dependant)
    return [each.alias for each in fields if isinstance(each.field_info, params.Query)]


READERS = 30
"""Requests that read at once: fewer than connections (`database.POOL`), some of which are left to
writers and to the look at keys."""

# What waits for nothing is `async`: the framework gives everything else to a thread of its own.


async def database_of(request: Request) -> Database:
    database: Database = request.app.state.database
    return database


DatabaseDep = Annotated[Database, Depends(database_of)]


async def feed_of(request: Request) -> EventFeed:
    feed: EventFeed = request.app.state.feed
    return feed


FeedDep = Annotated[EventFeed, Depends(feed_of)]


async def _reading(request: Request, database: DatabaseDep) -> AsyncIterator[Session]:
    """One of as many as there are connections to spare: the others wait here, and not in threads,
    which those that hold a connection need to make their answers. Opens nothing; to close it may
    wait for the database."""
    readers: asyncio.Semaphore = request.app.state.readers
    async with readers, _closing(database) as session:
        yield session


@asynccontextmanager
async def _closing(database: Database) -> AsyncIterator[Session]:
    """In a thread beside those of requests, all of which may wait for a connection."""
    with database.reading() as session:
        try:
            yield session
        finally:
            await to_thread.run_sync(session.close, limiter=CapacityLimiter(1))


async def _health_reading(request: Request) -> AsyncIterator[Session]:
    """Of connections that no other request can hold."""
    database: Database = request.app.state.health_database
    readers: asyncio.Semaphore = request.app.state.health_readers
    async with readers, _closing(database) as session:
        yield session


async def _body(request: Request) -> bytes:
    return await request.body()  # limited by `autosync.api.http.middleware.BodyLimit`


async def limits_of(request: Request) -> ServiceLimits:
    limits: ServiceLimits = request.app.state.limits
    return limits


async def client_of(request: Request) -> str:
    """Whose tunings these are (`autosync.api.http.access.guard`)."""
    return str(request.state.client)


async def caller_of(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


CallerDep = Annotated[Caller, Depends(caller_of)]
LimitsDep = Annotated[ServiceLimits, Depends(limits_of)]
ClientName = Annotated[str, Depends(client_of)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern="^[!-~]+$",
        description="Of your choice, one a request; sent again under it, it starts nothing new.",
    ),
]
Reading = Annotated[Session, Depends(_reading, scope="function")]
HealthReading = Annotated[Session, Depends(_health_reading, scope="function")]
Body = Annotated[bytes, Depends(_body)]
Id = Annotated[str, Path(max_length=200)]
Number = Annotated[int, Path(ge=0, lt=2**31, description="Of a version; 0 is the bundled one.")]
Limit = Annotated[int, Query(ge=1, le=500, description="How many, at most.")]
Cursor = Annotated[
    str | None,
    Query(max_length=LONGEST_CURSOR, description="`next` of the page before; none for the first."),
]


def sort_of(keys: Mapping[str, SortKey]) -> Any:
    """A query parameter that is one of these keys, with `-` for the largest first (`sorted_page`
    refuses others)."""
    names = [sign + name for name in keys for sign in ("-", "")]
    words = "With - the largest first; those without a value come last."
    return Query(description=words, json_schema_extra={"enum": names})


LastEvent = Annotated[int, Header(alias="Last-Event-ID", ge=0, lt=2**53)]
