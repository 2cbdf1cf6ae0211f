"""A service that a proxy shows below a path, as at https://example.com/autosync.

Routes and everything inside know nothing of the path: it is taken off what comes in, where the
proxy has not done so, and put before the addresses that go out: of redirects, and of templates.
"""

import re
from urllib.parse import urlsplit, urlunsplit

from jinja2.ext import Extension
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autosync.errors import InvalidInput

PATH_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._~-")
ADDRESS = re.compile(r'((?:href|src|action|hx-[a-z]+)=")/')
"""In a template, an attribute that begins with a path of the service."""
LEADING = ("location", "hx-redirect")
"""Headers that lead to a path of the service."""


def checked_root_path(text: str) -> str:
    """A path below which a proxy shows the service: empty, or `/prefix` without a slash at its end.

    Raises:
        InvalidInput: it is no such path, or one that the service has itself.
    """
    path = text.rstrip("/")
    usable = all(
        part not in ("", ".", "..") and PATH_CHARACTERS.issuperset(part)
        for part in path.split("/")[1:]
    )
    if path and not (path.startswith("/") and usable):
        raise InvalidInput(
            f"{text[:80]!r} is no path below which the service can be shown.",
            thing="--root-path",
            value=text[:80],
            remedy="Give /NAME: a slash, then letters, digits, dots, hyphens or underscores.",
        )
    if path and _is_of_service(path):
        raise InvalidInput(
            f"{path[:80]!r} is a path of the service itself, or the beginning of one.",
            thing="--root-path",
            value=path[:80],
            remedy="Show it below another path, such as /autosync.",
        )
    return path


def _is_of_service(path: str) -> bool:
    """Whether requests that a proxy has taken the path off already may begin with it again."""
    from autosync.api.http.app import ROUTERS  # it imports this module

    paths = (getattr(route, "path", "") for router in ROUTERS for route in router.routes)
    return any(f"{each}/".startswith(f"{path}/") for each in ("/static", "/openapi.json", *paths))


class RootPathAddresses(Extension):
    """Of Jinja: addresses that are written in templates begin with the variable `root_path`."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        return ADDRESS.sub(r"\1{{ root_path }}/", source)


class BelowRootPath:
    """ASGI middleware around all others; see the module."""

    def __init__(self, app: ASGIApp, root_path: str):
        self.app = app
        self.root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.root_path or scope["type"] != "http":
            return await self.app(scope, receive, send)
        if self._begins(scope["path"]):
            scope = {**scope, "path": scope["path"][len(self.root_path) :] or "/"}
        host = Headers(scope=scope).get("host", "")

        async def led(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=[*message["headers"]])
                for name in LEADING:
                    if name in headers:
                        headers[name] = self._below(headers[name], host)
                message["headers"] = headers.raw
            await send(message)

        await self.app(scope, receive, led)

    def _below(self, address: str, host: str) -> str:
        parts = urlsplit(address)
        elsewhere = parts.netloc not in ("", host)
        if elsewhere or not parts.path.startswith("/") or self._begins(parts.path):
            return address
        return urlunsplit(parts._replace(path=self.root_path + parts.path))

    def _begins(self, path: str) -> bool:
        return path == self.root_path or path.startswith(f"{self.root_path}/")
