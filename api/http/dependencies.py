"""What routes ask for: the database, a transaction, a limited body, a page of a list."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, Header, Path, Query, Request
from sqlalchemy.orm import Session

from autosync.api.db.database import Database
from autosync.api.http.uploads import Uploads


def database_of(request: Request) -> Database:
    database: Database = request.app.state.database
    return database


DatabaseDep = Annotated[Database, Depends(database_of)]


def _reading(database: DatabaseDep) -> Iterator[Session]:
    with database.reading() as session:
        yield session


async def _body(request: Request) -> bytes:
    return await request.body()  # limited by `autosync.api.http.body_limits.BodyLimit`


def uploads_of(request: Request) -> Uploads:
    uploads: Uploads = request.app.state.uploads
    return uploads


def client_of(request: Request) -> str:
    """Whose tunings these are: a token's name, or an address (`autosync.api.http.security`)."""
    return str(request.state.client)


UploadsDep = Annotated[Uploads, Depends(uploads_of)]
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
Body = Annotated[bytes, Depends(_body)]
Id = Annotated[str, Path(max_length=200)]
Number = Annotated[int, Path(ge=0, lt=2**31, description="Of a version; 0 is the bundled one.")]
Limit = Annotated[int, Query(ge=1, le=500, description="How many, at most.")]
Offset = Annotated[int, Query(ge=0, lt=2**31, description="How many to skip.")]
LastEvent = Annotated[int, Header(alias="Last-Event-ID", ge=0, lt=2**53)]
