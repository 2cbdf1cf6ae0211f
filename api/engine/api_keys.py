"""Keys of clients, and browsers that logged in with one."""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import cast

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from autosync.api.db.database import Database, now_seconds
from autosync.api.db.lookup import stored
from autosync.api.db.tables import SCOPES, ApiKeyRow, BrowserSessionRow
from autosync.api.spec import KeyScope
from autosync.errors import InvalidInput

CLIENT_NAME = r"[A-Za-z0-9_.-]{1,40}"
KEY = re.compile(r"([0-9a-f]{12})\.([A-Za-z0-9_-]{43})")
ID_BYTES, SECRET_BYTES = 6, 32
MOST_DAYS = 3650
SECONDS_PER_DAY = 86_400.0
NOBODYS_DIGEST = "0" * 64


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was made just now. text: what its owner shows; nobody can read it again."""

    id: str
    text: str = field(repr=False)


def allows(held: KeyScope, needed: KeyScope) -> bool:
    return held in (needed, "admin") or (held, needed) == ("tune", "read")


def make_key(database: Database, name: str, scope: KeyScope, days: float | None = None) -> NewKey:
    """name: of the client that it is for; several keys may have it. days: after which it expires;
    None: never.

    Raises:
        InvalidInput: the name, the scope or the days are none.
    """
    if not re.fullmatch(CLIENT_NAME, name):
        raise _refused("name", name, "Use 1 to 40 letters, digits, dots, dashes and underscores.")
    if scope not in SCOPES:
        raise _refused("scope", scope, f"Scopes are {', '.join(SCOPES)}.")
    if days is not None and not 0 < days <= MOST_DAYS:
        raise _refused("days", days, f"Give days from 1 to {MOST_DAYS}, or none.")
    key_id, secret = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES)
    lasting = {} if days is None else {"expires_at": now_seconds() + SECONDS_PER_DAY * days}
    named = {"id": key_id, "digest": digest_of(secret), "name": name, "scope": scope}
    with database.writing() as session:
        session.add(ApiKeyRow(**named, **lasting))
    return NewKey(key_id, f"{key_id}.{secret}")


def revoke_key(database: Database, key_id: str) -> None:
    """From now on nobody is let in with it, nor by a browser that logged in with it. A second time
    changes nothing.

    Raises:
        NotFound: there is no such key.
    """
    with database.writing() as session:
        row = stored(session, ApiKeyRow, key_id, "key")
        if row.revoked_at is None:
            session.execute(
                update(ApiKeyRow).where(ApiKeyRow.id == row.id).values(revoked_at=now_seconds())
            )


def living_key(session: Session, text: str) -> ApiKeyRow | None:
    """The key that this is, unless it was revoked or has expired."""
    found = KEY.fullmatch(text)
    if found is None:
        return None
    row = session.scalar(select(ApiKeyRow).where(ApiKeyRow.id == found[1], lives()))
    # as long for an unknown id; ids are no secret, so that the query may tell them apart
    right = secrets.compare_digest(digest_of(found[2]), row.digest if row else NOBODYS_DIGEST)
    return row if right else None


def lives() -> ColumnElement[bool]:
    """Of a key: neither revoked nor expired."""
    unexpired = or_(ApiKeyRow.expires_at.is_(None), ApiKeyRow.expires_at > now_seconds())
    return ApiKeyRow.revoked_at.is_(None) & unexpired


def scope_of_key(row: ApiKeyRow) -> KeyScope:
    return cast(KeyScope, row.scope)


def has_keys(session: Session) -> bool:
    """Whether there has ever been one: revoking the last must not open a service."""
    return session.scalar(select(ApiKeyRow.id).limit(1)) is not None


def note_use(database: Database, key_id: str) -> None:
    with database.writing() as session:
        session.execute(
            update(ApiKeyRow).where(ApiKeyRow.id == key_id).values(last_used_at=now_seconds())
        )


def digest_of(secret: str) -> str:
    """SHA-256 in hex, of what has as many random bits as a key."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _refused(thing: str, value: object, remedy: str) -> InvalidInput:
    shown = str(value)[:60]
    return InvalidInput(
        f"no key can have the {thing} {shown!r}.", thing=thing, value=shown, remedy=remedy
    )


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
