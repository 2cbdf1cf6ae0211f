"""Who sends a request: by a key or token in its header, or by a browser's cookie."""

import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Callable

from sqlalchemy.exc import DatabaseError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from autosync.api.db.database import Database
from autosync.api.db.tables import ApiKeyRow
from autosync.api.engine.api_keys import (
    KEY,
    begin_session,
    end_session,
    has_keys,
    key_of_session,
    living_key,
    note_use,
    proof_of,
    scope_of_key,
    token_proof_of_session,
)
from autosync.api.engine.service_limits import ServiceLimits, TryLater, how_to_raise
from autosync.api.http.access.access_rules import Access, Caller, NamedToken, NotAuthorized, Way
from autosync.api.http.access.browser import address_of, new_cookie, session_cookie

MOST_CLIENTS = 10_000
"""Remembered at once; the one that was seen least recently is forgotten first."""


class RateLimiter:
    """The generic cell rate algorithm (ITU-T I.371): a number for each client, no timers.

    burst: how many may come at once. clock: seconds that only grow.
    """

    def __init__(
        self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic
    ):
        self.interval_seconds = 1.0 / per_second
        self.slack_seconds = (burst - 1.0) / per_second
        self.clock = clock
        self._due: OrderedDict[str, float] = OrderedDict()

    def wait_seconds(self, client: str) -> float:
        """How long the client has to wait before its next one; 0 where it need not."""
        early = self._due.get(client, 0.0) - self.slack_seconds - self.clock()
        return max(early, 0.0)

    def count(self, client: str) -> None:
        """It has done it once more."""
        self._due[client] = max(self._due.get(client, 0.0), self.clock()) + self.interval_seconds
        self._due.move_to_end(client)
        if len(self._due) > MOST_CLIENTS:
            self._due.popitem(last=False)


BURST_SECONDS = 5.0
"""A client that was silent may send so many seconds' requests at once."""
WRONG_TOKENS_AT_ONCE = 10.0
LOOK_SECONDS = 1.0
"""How old may be what an open service knows about there being no key."""
NOTED_SECONDS = 300.0
"""A key's last use is written so often, at most: a write a request would be the load itself."""
log = logging.getLogger(__name__)


class Authentication:
    """Of one service. Its methods are called on the event loop; they ask the database in threads,
    and raise its DatabaseError where that is away.

    clock: seconds that only grow.
    """

    def __init__(
        self,
        database: Database,
        access: Access,
        limits: ServiceLimits,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.database = database
        self.access = access
        self.clock = clock
        self.requests = RateLimiter(limits.requests, BURST_SECONDS * limits.requests, clock)
        self.wrong_tokens = RateLimiter(limits.wrong_tokens, WRONG_TOKENS_AT_ONCE, clock)
        self.closed = access.closed
        self._look_at = float("-inf")
        self._noted: dict[str, float] = {}
        self._wrong: OrderedDict[str, None] = OrderedDict()  # tokens and where they were shown

    async def is_open(self) -> bool:
        """Whether nobody is asked for a key: until the database has one, on loopback."""
        if not self.closed and self.clock() >= self._look_at:
            self.closed = await run_in_threadpool(self._has_keys)
            self._look_at = self.clock() + LOOK_SECONDS
        return not self.closed

    async def caller_of(self, request: Request) -> Caller:
        """
        Raises:
            NotAuthorized: nobody who is known here. TryLater: too many guesses from there, or too
                many requests of theirs.
        """
        address = address_of(request)
        if await self.is_open():
            return Caller(address, "admin", "open")
        if shown := _bearer(request.headers.get("authorization", "")):
            caller: Caller | None = await self._of_secret(shown, address)
        else:
            cookie = session_cookie(request, self.access)
            caller = await run_in_threadpool(self._of_cookie, cookie, address) if cookie else None
        if caller is None:
            raise NotAuthorized(
                "this service wants a key.",
                thing="Authorization",
                remedy="Send `Authorization: Bearer KEY`, or log in at /login with a browser.",
            )
        self._count_request(caller)
        return caller

    async def log_in(self, request: Request, shown: str) -> str:
        """The browser's new cookie; the one it had is worth nothing now. Raises as `caller_of`."""
        address = address_of(request)
        caller = await self._of_secret(shown, address)
        self._count_request(caller)
        cookie, before = new_cookie(), session_cookie(request, self.access)
        await run_in_threadpool(self._begin, shown, cookie, before)
        return cookie

    async def log_out(self, request: Request) -> None:
        if cookie := session_cookie(request, self.access):
            await run_in_threadpool(end_session, self.database, cookie)

    async def _of_secret(self, shown: str, address: str) -> Caller:
        if KEY.fullmatch(shown):  # of 256 random bits: nobody finds one by guessing
            caller = await run_in_threadpool(self._of_shown_key, shown)
        else:  # at once: guesses that come together must not overtake the count of each other
            caller = self._of_token(shown, address)
        if caller is None:
            raise NotAuthorized(
                "the key is wrong, was revoked or has expired.",
                thing="Authorization",
                remedy="Ask whoever runs the service for another: `autosync keys` lists and makes "
                "them.",
            )
        return caller

    def _of_token(self, shown: str, address: str) -> Caller | None:
        """People choose tokens, so that guesses are slowed down. A guess is a text that was not
        shown from there before: a script with an old token keeps nobody out.

        Raises:
            TryLater: too many guesses from there; a right token would tell a guesser.
        """
        known_as = proof_of(address, shown)
        if known_as in self._wrong:
            self._wrong.move_to_end(known_as)
            return None
        if wait := self.wrong_tokens.wait_seconds(address):
            raise _too_often(wait, "wrong tokens from this address", "wrong_tokens")
        owner = self.access.owner_of(shown)
        if owner is None:
            self.wrong_tokens.count(address)
            self._wrong[known_as] = None
            if len(self._wrong) > MOST_CLIENTS:
                self._wrong.popitem(last=False)
        return _named(owner, address, "key")

    def _count_request(self, caller: Caller) -> None:
        if wait := self.requests.wait_seconds(caller.client):
            raise _too_often(wait, "requests of yours", "requests")
        self.requests.count(caller.client)

    def _of_shown_key(self, shown: str) -> Caller | None:
        with self.database.reading() as session:
            row = living_key(session, shown)
        return self._of_key(row, "key") if row else None

    def _of_cookie(self, cookie: str, address: str) -> Caller | None:
        with self.database.reading() as session:
            row, proof = key_of_session(session, cookie), token_proof_of_session(session, cookie)
        if row is not None:
            return self._of_key(row, "browser")
        owner = next((each for each in self.access.tokens if _is_of(each, cookie, proof)), None)
        return _named(owner, address, "browser")

    def _of_key(self, row: ApiKeyRow, way: Way) -> Caller:
        if self.clock() >= self._noted.get(row.id, float("-inf")):
            self._noted[row.id] = self.clock() + NOTED_SECONDS
            try:
                note_use(self.database, row.id)
            except DatabaseError as error:  # of a full disk: who only reads can go on
                log.warning("the last use of key %s was not written: %s", row.id, error)
        return Caller(row.name, scope_of_key(row), way)

    def _begin(self, shown: str, cookie: str, before: str | None) -> None:
        if before is not None:
            end_session(self.database, before)
        if KEY.fullmatch(shown):
            begin_session(self.database, cookie, key_id=shown.partition(".")[0])
        else:
            begin_session(self.database, cookie, token=shown)

    def _has_keys(self) -> bool:
        with self.database.reading() as session:
            return has_keys(session)


def _named(owner: NamedToken | None, address: str, way: Way) -> Caller | None:
    return Caller(owner.name or address, "admin", way) if owner else None


def _too_often(wait_seconds: float, what: str, limit: str) -> TryLater:
    return TryLater(
        f"too many {what}.",
        thing=limit,
        remedy=f"Try again in {wait_seconds:.1f} s. {how_to_raise(limit)}",
        retry_seconds=wait_seconds,
    )


def _is_of(token: NamedToken, cookie: str, proof: str | None) -> bool:
    return proof is not None and hmac.compare_digest(proof_of(cookie, token.token), proof)


def _bearer(header: str) -> str:
    """The key of `Bearer KEY`; empty for another scheme."""
    scheme, _, value = header.partition(" ")
    return value.strip() if scheme.lower() == "bearer" else ""
