"""What a call of the client can raise."""

from typing import Any

import httpx

from autosync.errors import AutosyncError


class ServiceError(AutosyncError):
    """The service refused a request; its problem document says why, what, and the way out.

    status: of the answer. title: the kind of refusal. retry_seconds: after which the service would
    look at it again; None where it did not say. request_id: by which its log knows the request.
    """

    def __init__(
        self,
        message: str,
        *,
        thing: str = "",
        value: object = None,
        remedy: str = "",
        status: int = 0,
        title: str = "",
        retry_seconds: float | None = None,
        request_id: str = "",
    ):
        super().__init__(message, thing=thing, value=value, remedy=remedy)
        self.status = status
        self.title = title
        self.retry_seconds = retry_seconds
        self.request_id = request_id

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (self.message, dict(self.__dict__))


class ServiceUnreachable(AutosyncError):
    """No service answers at the address, or it stopped answering."""


def refusal_in(response: httpx.Response) -> ServiceError:
    """What the service's problem+json says; of an answer that is none, the status."""
    problem = _problem(response)
    retry = response.headers.get("Retry-After", "")
    return ServiceError(
        str(problem.get("detail") or f"the service answered {response.status_code}."),
        thing=str(problem.get("thing", "")),
        value=problem.get("value"),
        remedy=str(problem.get("remedy", "")) or _way_on(response),
        status=response.status_code,
        title=str(problem.get("title", "")),
        retry_seconds=float(retry) if retry.isdigit() else None,
        request_id=response.headers.get("X-Request-ID", ""),
    )


def unreachable(address: str, why: object) -> ServiceUnreachable:
    return ServiceUnreachable(
        f"no service answers at {address!r}: {why}.",
        thing="address",
        value=address,
        remedy="Start one with `autosync serve`, or give the address of one.",
    )


def _way_on(response: httpx.Response) -> str:
    """Redirects are not followed: the token is for the address that was given."""
    if not response.has_redirect_location:
        return ""
    return f"It leads to {response.headers['Location']!r}: give the address of the service there."


def _problem(response: httpx.Response) -> dict[str, Any]:
    try:
        problem = response.json()
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}


def _rebuilt(message: str, fields: dict[str, Any]) -> ServiceError:
    error = ServiceError(message)
    error.__dict__.update(fields)
    return error
