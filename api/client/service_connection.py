"""What all calls share: the address, what is sent again and when, lists in pages."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from typing import Any, TypeVar

import httpx

from autosync.api.client.service_errors import ServiceError, refusal_in, unreachable
from autosync.api.views.schemas import Page
from autosync.documents import adapter, to_data

Answer = TypeVar("Answer")
Listed = TypeVar("Listed", bound=Page)

PAGE_ROWS = 500
"""Asked for at a time: the most that the service gives."""
REPEATABLE = ("GET", "PUT", "DELETE")
"""Methods that may arrive twice."""
UNAVAILABLE = (502, 503, 504)
FIRST_PAUSE_SECONDS = 0.25
"""Before a request is sent again; each pause is twice the one before."""
LONGEST_PAUSE_SECONDS = 60.0
"""Where a service asks for a longer pause, its refusal is raised instead."""


@dataclass(frozen=True, slots=True)
class ServiceConnection:
    """attempts: how often a request is sent before its error is raised. sleep: waits between."""

    http: httpx.Client
    attempts: int
    sleep: Callable[[float], None]

    def send(
        self,
        method: str,
        path: str,
        *,
        repeatable: bool | None = None,
        accepted: int | None = None,
        **request: Any,
    ) -> httpx.Response:
        """The answer, whole. repeatable: whether the request may arrive twice, by default as its
        method; others are sent again only where they did not arrive or were not looked at.
        accepted: a status of errors that is an answer here, but for problem documents.

        Raises:
            ServiceError: the service refused. ServiceUnreachable: it does not answer, or a web page
                comes in its place.
        """
        again = method in REPEATABLE if repeatable is None else repeatable
        for attempt in range(self.attempts):
            last = attempt + 1 == self.attempts
            try:
                response = self.http.request(method, path, **request)
            except httpx.TransportError as error:
                if last or not (again or never_sent(error)):
                    raise unreachable(self.address, error) from error
                self.sleep(pause_seconds(attempt))
                continue
            if response.is_success or _is_answer(response, accepted):
                self._refuse_page(response)
                return response
            refusal = refusal_in(response)
            if last or not worth_another(refusal, again):
                raise refusal
            self.sleep(pause_seconds(attempt, refusal))
        raise ValueError(f"attempts is {self.attempts}")

    @contextmanager
    def streamed(self, path: str, **request: Any) -> Iterator[httpx.Response]:
        """An answer that is read as it comes.

        Raises:
            ServiceError, ServiceUnreachable: as `send`. httpx.TransportError: it does not answer.
        """
        with self.http.stream("GET", path, **request) as response:
            if not response.is_success:
                response.read()
                raise refusal_in(response)
            self._refuse_page(response)
            yield response

    def _refuse_page(self, response: httpx.Response) -> None:
        """Calls have no pages for answers: one is of a proxy, or of another server."""
        if _type_of(response).startswith("text/html"):
            raise unreachable(self.address, "a web page comes in place of its answer")

    def get(self, path: str, answer: type[Answer], **query: Any) -> Answer:
        """query: without those that are None."""
        return self.parsed(self.send("GET", path, params=given(query)), answer)

    def post(
        self, path: str, answer: type[Answer], *, repeatable: bool = False, **request: Any
    ) -> Answer:
        return self.parsed(self.send("POST", path, repeatable=repeatable, **request), answer)

    def parsed(self, response: httpx.Response, answer: type[Answer]) -> Answer:
        found: Answer = adapter(answer).validate_json(response.content)
        return found

    def listed(
        self,
        path: str,
        page: type[Listed],
        limit: int | None,
        cursor: str | None = None,
        **query: Any,
    ) -> Listed:
        """A list of at most `limit` rows, of all where that is None; as many requests as that
        takes. cursor: where to go on, `next` of the list before."""
        rows = PAGE_ROWS if limit is None else min(limit, PAGE_ROWS)
        whole = self.get(path, page, limit=rows, cursor=cursor, **query)
        items: list[Any] = whole.items  # type: ignore[attr-defined]  # every page has them
        while whole.next is not None and (limit is None or len(items) < limit):
            rows = PAGE_ROWS if limit is None else min(limit - len(items), PAGE_ROWS)
            following = self.get(path, page, limit=rows, cursor=whole.next, **query)
            items += following.items  # type: ignore[attr-defined]
            whole.next = following.next
        return whole

    @property
    def address(self) -> str:
        return str(self.http.base_url).rstrip("/")


def _is_answer(response: httpx.Response, accepted: int | None) -> bool:
    return response.status_code == accepted and _type_of(response).startswith("application/json")


def _type_of(response: httpx.Response) -> str:
    return str(response.headers.get("Content-Type", ""))


def given(options: Any) -> dict[str, Any]:
    """Without those that are None."""
    return {name: value for name, value in options.items() if value is not None}


def plain(options: Mapping[str, object]) -> dict[str, Any]:
    """As JSON data, documents too."""
    return {
        name: to_data(value) if is_dataclass(value) else value for name, value in options.items()
    }


def never_sent(error: httpx.TransportError) -> bool:
    return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)


def worth_another(refusal: ServiceError, repeatable: bool) -> bool:
    """Whether the request may succeed if it is sent again, and does nothing twice."""
    if (refusal.retry_seconds or 0.0) > LONGEST_PAUSE_SECONDS:
        return False
    return refusal.status == 429 or (repeatable and refusal.status in UNAVAILABLE)


def pause_seconds(attempt: int, refusal: ServiceError | None = None) -> float:
    """attempt: counted from 0."""
    asked = refusal.retry_seconds if refusal else None
    return asked if asked is not None else FIRST_PAUSE_SECONDS * 2**attempt
