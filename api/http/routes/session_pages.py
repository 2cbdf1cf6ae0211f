"""The dashboard's door: log in with a key, log out."""

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from fastapi.responses import RedirectResponse

from autosync.api.http.access.authentication import Authentication
from autosync.api.http.access.browser_cookies import (
    check_form_token,
    send_session,
    take_session,
)
from autosync.api.http.access.caller import NotAuthorized
from autosync.api.http.access.origin_checks import local_address
from autosync.api.http.page_templates import show

LONGEST_KEY, LONGEST_ADDRESS = 1000, 2000
HOME = "/"

router = APIRouter(include_in_schema=False)


async def _authentication(request: Request) -> Authentication:
    found: Authentication = request.app.state.authentication
    return found


AuthenticationDep = Annotated[Authentication, Depends(_authentication)]
Shown = Annotated[str, Form(max_length=LONGEST_KEY)]


@router.get("/login")
async def login_page(
    request: Request,
    authentication: AuthenticationDep,
    following: Annotated[str, Query(alias="next", max_length=LONGEST_ADDRESS)] = HOME,
) -> Response:
    if await authentication.is_open():
        return RedirectResponse(local_address(following), 303)
    return show(request, "login.html", {"next": local_address(following)})


@router.post("/login", dependencies=[Depends(check_form_token)])
async def log_in(
    request: Request,
    authentication: AuthenticationDep,
    key: Shown = "",
    following: Annotated[str, Form(alias="next", max_length=LONGEST_ADDRESS)] = HOME,
) -> Response:
    try:
        cookie = await authentication.log_in(request, key.strip())
    except NotAuthorized as error:
        return show(
            request, "login.html", {"next": local_address(following), "refused": error}, 401
        )
    response = RedirectResponse(local_address(following), 303)
    send_session(request, authentication.access, response, cookie)
    return response


@router.post("/logout", dependencies=[Depends(check_form_token)])
async def log_out(request: Request, authentication: AuthenticationDep) -> Response:
    await authentication.log_out(request)
    response = RedirectResponse("/login", 303)
    take_session(request, authentication.access, response)
    return response
