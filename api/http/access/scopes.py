"""Which scope a route needs, and whether the caller has it."""

from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from autosync.api.engine.api_keys import KeyScope, allows
from autosync.api.http.access.browser_cookies import check_form_token
from autosync.api.http.access.caller import Caller, NotAllowed
from autosync.api.http.access.origin_checks import SAFE_METHODS
from autosync.api.http.problems import is_for_programs


class Needed:
    """A dependency that says which scope its route needs, where its method does not."""

    def __init__(self, scope: KeyScope):
        self.scope = scope

    async def __call__(self) -> None:
        """`authorized` looks at it."""


NEEDS_ADMIN = Depends(Needed("admin"))


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
        NotAllowed: the caller's scope is below the route's; or what is sent by the dashboard, or
            with a browser's cookie, lacks the token of a form.
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
    by_browser = caller.way == "browser" or not is_for_programs(request)
    if by_browser and request.method not in SAFE_METHODS:
        await check_form_token(request)
