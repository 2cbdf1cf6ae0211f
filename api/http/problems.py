"""Errors as application/problem+json: what is wrong, the thing, the value, the way out."""

import json
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.exc import DatabaseError, DataError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.routing import Match

from autosync.api.db.database import database_trouble
from autosync.api.engine.database_store import LeaseLost
from autosync.api.engine.service_limits import TryLater
from autosync.api.http.access.access_rules import NotAllowed, NotAuthorized
from autosync.api.views.schemas import Problem
from autosync.documents import further_problems
from autosync.errors import AutosyncError, NotFound, NotSupported

MEDIA_TYPE = "application/problem+json"
CHALLENGE = 'Bearer realm="autosync"'
REMEDIES = {
    400: "Send one JSON document in UTF-8, nested as GET /docs shows.",
    404: "GET /docs lists the paths there are.",
    405: "GET /docs lists the methods of each path.",
    429: "Try again after the seconds that `Retry-After` says.",
    422: "Send text without NUL characters.",
    413: "Graphs, clusters and trained simulators are uploaded, never a model's weights.",
}
STATUSES = {
    400: "Refused: the body cannot be read",
    401: "Not authorized: a key is missing or wrong",
    403: "Not allowed: a scope that is too low, an unknown host, or a page of another site",
    404: "Not found",
    409: "Not possible",
    410: "Gone: another worker has the tuning, or it has ended",
    413: "Too large",
    422: "Invalid input",
    429: "Too many requests",
    500: "A defect of autosync",
    503: "The database does not answer",
}
"""As OpenAPI describes them; a problem's title is what is before the colon."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
log = logging.getLogger(__name__)


Handler = Callable[[Request, Exception], Response]
Page = Callable[[Request, dict[str, Any]], Response]


def install(app: FastAPI, page: Page) -> None:
    """page: shows a problem to someone who looks at the dashboard with a browser. Who comes to the
    address that a form is sent to, as after a log-in, is led to the page above it."""
    for kind, handler in (
        (AutosyncError, _refused),
        (RequestValidationError, _invalid),
        (HTTPException, _http),
        (PoolTimeout, _no_connection),
        (DataError, _unstorable),
        (OperationalError, _database),
        (DatabaseError, _database),
        (Exception, _defect),
    ):
        app.exception_handler(kind)(_for_reader(handler, page))


def _for_reader(handler: Handler, page: Page) -> Handler:
    def answer(request: Request, error: Exception) -> Response:
        response = handler(request, error)
        if not is_for_reader(request):
            return response
        if response.status_code == 405 and request.method == "GET":  # the address of a form alone
            return RedirectResponse(request.scope["path"].rpartition("/")[0] or "/", 303)
        return page(request, json.loads(bytes(response.body)))

    return answer


def is_for_programs(request: Request) -> bool:
    """Whether it asks for an answer of the REST API, and no page."""
    path: str = request.scope["path"]
    return path.startswith(("/v1", "/openapi"))


def is_for_reader(request: Request) -> bool:
    """Whether it asks for a page, with a browser."""
    return not is_for_programs(request) and "text/html" in request.headers.get("accept", "")


def refusal(
    request: Request, error: AutosyncError | DatabaseError | PoolTimeout | HTTPException
) -> Response:
    """The answer of what refuses before any route."""
    if isinstance(error, AutosyncError):
        return _refused(request, error)
    if isinstance(error, HTTPException):
        return _http(request, error)
    handler = _no_connection if isinstance(error, PoolTimeout) else _database
    return handler(request, error)


def problem(
    status: int,
    title: str,
    detail: str,
    *,
    thing: str = "",
    value: object = "",
    remedy: str = "",
    headers: Mapping[str, str] | None = None,
) -> Response:
    body = Problem(
        type=f"urn:autosync:{title.lower().replace(' ', '-')}",
        title=title,
        status=status,
        detail=_shown(detail, 2000),
        thing=_shown(thing, 200),
        value=_shown(value, 200),
        remedy=_shown(remedy, 2000),
    )
    return Response(body.model_dump_json(), status, dict(headers or {}), MEDIA_TYPE)


STATUS_OF: tuple[tuple[type[AutosyncError], int], ...] = (
    (NotAuthorized, 401),
    (NotAllowed, 403),
    (NotFound, 404),
    (NotSupported, 409),
    (LeaseLost, 410),
    (TryLater, 429),
)


def status_of(error: AutosyncError) -> int:
    return next((status for kind, status in STATUS_OF if isinstance(error, kind)), 422)


def _title(status: int) -> str:
    return STATUSES.get(status, "Refused").partition(":")[0]


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, AutosyncError)
    return refused(error)


def refused(error: AutosyncError) -> Response:
    """The answer for programs."""
    status = status_of(error)
    headers = {"WWW-Authenticate": CHALLENGE} if status == 401 else {}
    if isinstance(error, TryLater):
        headers["Retry-After"] = str(math.ceil(error.retry_seconds))
    return problem(
        status,
        _title(status),
        error.message,
        thing=error.thing,
        value=error.value,
        remedy=error.remedy,
        headers=headers,
    )


def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first, *others = error.errors()
    where = [str(part) for part in first["loc"]]
    name = ".".join(where[1:]) or where[0]
    value = _shown(repr(first["input"]), 80)
    also = further_problems([".".join(str(part) for part in each["loc"][1:]) for each in others])
    detail = f"{where[0]} {name}: {first['msg']}, got {value}.{also}"
    if first["type"] == "json_invalid":
        name, value = "body", ""
        detail = f"the body is no JSON: {first['ctx']['error']} at character {where[-1]}."
    return problem(
        422,
        "Invalid input",
        detail,
        thing=name,
        value=value,
        remedy="GET /docs shows what this request takes.",
    )


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_allowed(request))
    return problem(
        error.status_code,
        _title(error.status_code),
        str(error.detail),
        thing=request.url.path,
        remedy=REMEDIES.get(error.status_code, ""),
        headers=headers,
    )


def _allowed(request: Request) -> list[str]:
    """The methods of the path: as documented, or of all routes that lead there. The framework tells
    those of the first."""
    documented = request.app.openapi()["paths"].get(request.url.path)
    if documented is not None:
        return [method.upper() for method in documented]
    return [
        method
        for method in METHODS
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL
            for route in request.app.routes
        )
    ]


def _database(request: Request, error: Exception) -> Response:
    trouble = database_trouble(error)
    if trouble is None and not isinstance(error, OperationalError):
        return _defect(request, error)
    log.error("database: %s", error)
    return problem(
        503,
        "Database unavailable",
        trouble.message if trouble else "the database does not answer.",
        thing="database",
        remedy="Try again; if it stays, look at the service's log.",
        headers={"Retry-After": "5"},
    )


def _no_connection(request: Request, error: Exception) -> Response:
    log.error("database: %s", error)
    return problem(
        503,
        "Database unavailable",
        "all connections to the database are in use.",
        thing="database",
        remedy="Try again in some seconds.",
        headers={"Retry-After": "5"},
    )


def _unstorable(request: Request, error: Exception) -> Response:
    """PostgreSQL refuses what SQLite takes, such as NUL in a text."""
    assert isinstance(error, DataError)
    return problem(
        422,
        "Invalid input",
        f"the database cannot hold a value of this request: {error.orig}.",
        thing="request",
        remedy="Leave out characters that cannot be printed.",
    )


def _defect(request: Request, error: Exception) -> Response:
    known_as = getattr(request.state, "request_id", "")
    log.error("%s %s failed, %s", request.method, request.url.path, known_as, exc_info=error)
    return problem(
        500,
        "Defect",
        f"unexpected {type(error).__name__}: this is a defect of autosync.",
        thing=request.url.path,
        remedy="The service's log has the traceback.",
        headers={"X-Request-ID": known_as} if known_as else None,
    )


def _shown(value: object, longest: int) -> str:
    text = "" if value is None else str(value)
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= longest else text[: longest - 3] + "..."
