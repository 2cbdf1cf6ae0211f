"""Browsers that logged in: each has a random cookie, of which the database has the hash.

A session lasts as long as what it was opened with: a key that is revoked or expires, or a token
that the operator takes away, ends it.
"""

import hmac

from sqlalchemy import delete, select
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from autosync.api.db.clock import now_seconds
from autosync.api.db.database import Database
from autosync.api.db.tables import ApiKeyRow, BrowserSessionRow
from autosync.api.engine.api_keys import digest_of, lives

SESSION_SECONDS = 12 * 3600


def begin_session(
    database: Database, cookie: str, *, key_id: str | None = None, token: str | None = None
) -> None:
    """With a key or a token. Sessions that have expired are forgotten."""
    now = now_seconds()
    row = BrowserSessionRow(
        digest=digest_of(cookie),
        key_id=key_id,
        token_proof=None if token is None else proof_of(cookie, token),
        expires_at=now + SESSION_SECONDS,
    )
    with database.writing() as session:
        session.execute(delete(BrowserSessionRow).where(BrowserSessionRow.expires_at < now))
        session.add(row)


def end_session(database: Database, cookie: str) -> None:
    """The cookie is worth nothing from now on, wherever it was copied to."""
    with database.writing() as session:
        gone = BrowserSessionRow.digest == digest_of(cookie)
        session.execute(delete(BrowserSessionRow).where(gone))


def key_of_session(session: Session, cookie: str) -> ApiKeyRow | None:
    """The key that the browser logged in with, while both live."""
    return session.scalar(
        select(ApiKeyRow)
        .join(BrowserSessionRow, BrowserSessionRow.key_id == ApiKeyRow.id)
        .where(*_living(cookie), lives())
    )


def token_proof_of_session(session: Session, cookie: str) -> str | None:
    """Of the token that the browser logged in with, as `proof_of`."""
    return session.scalar(select(BrowserSessionRow.token_proof).where(*_living(cookie)))


def proof_of(cookie: str, token: str) -> str:
    """That the browser showed this token. People choose tokens, and a bare hash of one could be
    found by guessing; the cookie in it is as random as a key, and only the browser has it."""
    return hmac.digest(cookie.encode(), token.encode(), "sha256").hex()


def _living(cookie: str) -> tuple[ColumnElement[bool], ...]:
    return (
        BrowserSessionRow.digest == digest_of(cookie),
        BrowserSessionRow.expires_at > now_seconds(),
    )
