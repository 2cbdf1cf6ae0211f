"""Requests to an application in this process, in place of a service on the network."""

from types import TracebackType
from typing import Any, Self

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal


class ApplicationTransport(httpx.BaseTransport):
    """Carries the requests of a `httpx.Client` to an ASGI application, whose event loop is a thread
    of its own. Answers arrive whole. What the application does not handle is raised here.

    application: as ASGI has it. address: of the client, as the application sees it.
    """

    def __init__(self, application: Any, address: str = ""):
        self._transport = httpx.ASGITransport(application, client=(address, 0))
        self._running = start_blocking_portal()
        self._portal: BlockingPortal = self._running.__enter__()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._portal.call(self._answer, request)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        answer = await self._transport.handle_async_request(request)
        content = await answer.aread()
        return httpx.Response(answer.status_code, headers=answer.headers, content=content)

    def close(self) -> None:
        self._running.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self.close()
