"""The middleware before all routes: refuses strangers, says who calls, sends security headers."""

import json
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute
from sqlalchemy.exc import DatabaseError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autosync.api.engine.api_keys import allows
from autosync.api.http.access.access_rules import Caller, NotAllowed, NotAuthorized
from autosync.api.http.access.authentication import Authentication
from autosync.api.http.access.browser import (
    SAFE_METHODS,
    address_of,
    check_form_token,
    check_origin,
    local_address,
    parsed_url,
)
from autosync.api.http.page_templates import error_page, show
from autosync.api.http.problems import is_for_programs, is_for_reader, refusal
from autosync.api.spec import KeyScope
from autosync.errors import AutosyncError


class Needed:
    """A dependency that says which scope its route needs, where its method does not."""

    def __init__(self, scope: KeyScope):
        self.scope = scope

    async def __call__(self) -> None:
        """`authorized` looks at it."""


NEEDS_ADMIN = Depends(Needed("admin"))
NEEDS_WORKER = Depends(Needed("worker"))


def scope_of(route: BaseRoute) -> KeyScope:
    """What it says itself; else `read` of what changes nothing, and `tune` of the rest."""
    assert isinstance(route, APIRoute)
    for depends in route.dependencies:
        if isinstance(depends.dependency, Needed):
            return depends.dependency.scope
    return "read" if methods_of(route) <= set(SAFE_METHODS) else "tune"


def scopes_of(router: APIRouter) -> dict[tuple[str, str], KeyScope]:
    """By path and method."""
    return {
        (route.path, method): scope_of(route)
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in methods_of(route)
    }


def methods_of(route: APIRoute) -> set[str]:
    return route.methods or set()


async def authorized(request: Request) -> None:
    """
    Raises:
        NotAllowed: as `check_scope`; or what is sent by the dashboard, or with a browser's cookie,
            lacks the token of a form.
    """
    check_scope(request)
    caller: Caller = request.state.caller
    by_browser = caller.way == "browser" or not is_for_programs(request)
    if by_browser and request.method not in SAFE_METHODS:
        await check_form_token(request)


def check_scope(request: Request) -> None:
    """
    Raises:
        NotAllowed: the caller's scope is below the route's.
    """
    caller: Caller = request.state.caller
    needed = scope_of(request.scope["route"])
    if not allows(caller.scope, needed):
        raise NotAllowed(
            f"your key has the scope {caller.scope}, and this needs {needed}.",
            thing="scope",
            value=caller.scope,
            remedy=f"Ask whoever runs the service for a key of scope {needed}.",
        )


LOGIN = "/login"
OPEN_PATHS = ("/v1/health", "/v1/ready", LOGIN)
OPEN_FOLDER = "/static/"
"""What everyone can read in the package, too."""
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer forms come from the origin "null"
    "cross-origin-opener-policy": "same-origin",
}


class Guard:
    """ASGI middleware. `request.state.client` is whose tunings and limits a request counts for, and
    `request.state.caller` who sends it, on all paths but the open ones."""

    def __init__(self, app: ASGIApp, authentication: Authentication):
        self.app = app
        self.authentication = authentication

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        request = Request(scope)
        app = await self._refused(request) or self.app
        caller: Caller | None = getattr(request.state, "caller", None)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=[*message["headers"]])
                headers.update(HEADERS)
                if caller is not None and caller.way == "browser":
                    headers["cache-control"] = "no-store"  # nor to be seen again after a log out
                message["headers"] = headers.raw
            await send(message)

        await app(scope, receive, with_headers)

    async def _refused(self, request: Request) -> Response | None:
        """Why nobody is let in, or None."""
        path = request.scope["path"]  # of the URL also the Host header is a part
        request.state.client = address_of(request)
        try:
            check_origin(request, self.authentication.access)
            if path not in OPEN_PATHS and not path.startswith(OPEN_FOLDER):
                caller = await self.authentication.caller_of(request)
                request.state.caller, request.state.client = caller, caller.client
        except NotAuthorized as error:
            return _to_login(request, error) or refusal_for(request, error)
        except (AutosyncError, DatabaseError, PoolTimeout) as error:
            return refusal_for(request, error)
        return None


def refusal_for(
    request: Request, error: AutosyncError | DatabaseError | PoolTimeout | HTTPException
) -> Response:
    """Of a middleware: a page for a reader, and a problem for programs."""
    answer = refusal(request, error)
    return error_page(request, json.loads(bytes(answer.body))) if is_for_reader(request) else answer


def _to_login(request: Request, error: NotAuthorized) -> Response | None:
    """For a browser without a session; None for everyone else."""
    headers = request.headers
    if headers.get("hx-request"):  # of a page that is shown already
        answer = refusal(request, error)
        page = parsed_url(headers.get("hx-current-url", ""))
        query = f"?{page.query}" if page.query else ""
        answer.headers["HX-Redirect"] = _login_before(page.path + query)
        return answer
    if request.method not in ("GET", "HEAD") or not is_for_reader(request):
        return None
    if headers.get("sec-fetch-site") == "cross-site":
        # after a link from elsewhere a browser keeps the cookie (SameSite=Strict); it sends it with
        # what this page leads to, which is the same address
        return show(request, "arrival.html", {"address": local_address(_asked_for(request))})
    return RedirectResponse(_login_before(_asked_for(request)), 303)


def _asked_for(request: Request) -> str:
    query = request.scope["query_string"].decode("latin-1")
    return quote(request.scope["path"]) + (f"?{query}" if query else "")


def _login_before(address: str) -> str:
    return f"{LOGIN}?next={quote(local_address(address), safe='/')}"
