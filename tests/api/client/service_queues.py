"""A worker's queue at a service in this process, with a key of scope `worker`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx

from autosync.api.client.application_transport import ApplicationTransport
from autosync.api.client.service_queue import ServiceQueue, service_client
from autosync.api.db import Database
from autosync.api.engine.api_keys import make_key
from autosync.api.engine.service_limits import UNLIMITED
from autosync.api.http.access.access_rules import Access
from autosync.api.http.app import create_app

ADDRESS = "http://127.0.0.1"
Line = Callable[[httpx.Request, Callable[[httpx.Request], httpx.Response]], httpx.Response]
"""What lies between worker and service: given a request and what answers it."""


class LineTransport(httpx.BaseTransport):
    def __init__(self, service: httpx.BaseTransport, line: Line):
        self.service = service
        self.line = line

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        return self.line(request, self.service.handle_request)


def undisturbed(
    request: httpx.Request, service: Callable[[httpx.Request], httpx.Response]
) -> httpx.Response:
    return service(request)


@contextmanager
def service_queue(
    database: Database, line: Line = undisturbed, token: str | None = None
) -> Iterator[ServiceQueue]:
    """token: by default a new key's."""
    shown = token or make_key(database, "pods", "worker").text
    application = create_app(database, Access(), UNLIMITED)
    with (
        ApplicationTransport(application, "127.0.0.1") as service,
        service_client(ADDRESS, shown, LineTransport(service, line)) as client,
    ):
        yield ServiceQueue(client)
