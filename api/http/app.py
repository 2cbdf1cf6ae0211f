"""The service: REST API and dashboard over one database."""

import asyncio
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import uvicorn
from fastapi import Depends, FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.staticfiles import StaticFiles
from uvicorn.config import STARTUP_FAILURE

from autosync.api.db.database import Database, connect
from autosync.api.engine.service_limits import ServiceLimits
from autosync.api.http import openapi, problems
from autosync.api.http.access.access_rules import Access, access_on
from autosync.api.http.access.authentication import Authentication
from autosync.api.http.access.guard import Guard, authorized, scopes_of
from autosync.api.http.body_limits import BodyLimit
from autosync.api.http.dependencies import READERS, refuse_unknown_parameters
from autosync.api.http.entity_tags import KeptAnswers
from autosync.api.http.event_stream import EventFeed
from autosync.api.http.http_protocol import ProblemProtocol
from autosync.api.http.page_templates import error_page
from autosync.api.http.request_log import RequestLog, RequestMetrics, show_requests
from autosync.api.http.routes import (
    document_pages,
    document_routes,
    health_routes,
    key_routes,
    metrics_routes,
    pages,
    prediction_routes,
    runtime_routes,
    service_routes,
    session_pages,
    simulator_pages,
    simulator_routes,
    tuning_pages,
    tuning_routes,
    version_routes,
)
from autosync.api.http.uploading.uploads import Uploads
from autosync.api.http.warm_up import warm_up

STATIC = Path(__file__).parent / "static"
API = (  # versions before the names of simulators
    document_routes,
    tuning_routes,
    version_routes,
    simulator_routes,
    runtime_routes,
    prediction_routes,
    service_routes,
    key_routes,
)
PAGES = (pages, tuning_pages, document_pages, simulator_pages, metrics_routes)
GRACE_SECONDS = 1
"""On shutdown, event streams that are still open are cut off after this."""


def create_app(
    database: Database, access: Access | None = None, limits: ServiceLimits | None = None
) -> FastAPI:
    """The ASGI application. The database must be migrated; it is closed at the end."""
    access, limits = access or Access(), limits or ServiceLimits()
    uploads = Uploads(database, limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.openapi()  # made once, and not within the first request
        await run_in_threadpool(warm_up, database)
        yield
        app.state.feed.close()
        uploads.close()
        database.close()

    app = FastAPI(title="AutoSync", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.access = access
    app.state.authentication = Authentication(database, access, limits)
    app.state.database = database
    app.state.uploads = uploads
    app.state.feed = EventFeed(database)
    app.state.kept_answers = KeptAnswers()
    app.state.metrics = RequestMetrics()
    app.state.predicting = threading.Lock()
    app.state.readers = asyncio.Semaphore(READERS)
    for module in API:
        required = [Depends(authorized), Depends(refuse_unknown_parameters)]
        app.include_router(module.router, dependencies=required)
    for shown in PAGES:
        app.include_router(shown.router, dependencies=[Depends(authorized)])
    app.include_router(health_routes.router, dependencies=[Depends(refuse_unknown_parameters)])
    app.include_router(session_pages.router)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    problems.install(app, error_page)
    scopes = {key: scope for module in API for key, scope in scopes_of(module.router).items()}
    openapi.install(app, scopes)
    app.add_middleware(BodyLimit, limits=limits)
    app.add_middleware(Guard, authentication=app.state.authentication)
    app.add_middleware(RequestLog, metrics=app.state.metrics)
    return app


class ServiceServer(uvicorn.Server):
    """before_shutdown: called once, when a signal has asked it to end."""

    def __init__(self, config: uvicorn.Config, before_shutdown: Callable[[], None]):
        super().__init__(config)
        self.before_shutdown = before_shutdown

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.before_shutdown()
        await super().shutdown(sockets)


def serve(
    url: str,
    host: str = "127.0.0.1",
    port: int = 8080,
    access: Access | None = None,
    limits: ServiceLimits | None = None,
    log_requests: bool = False,
    on_shutdown: Callable[[], None] = lambda: None,
) -> None:
    """Migrate the database and serve until interrupted. Workers run elsewhere
    (`autosync.api.engine.queue_worker`).

    access: by default whoever reaches a loopback address. log_requests: a line of JSON for each
    goes to stderr. on_shutdown: called as soon as it is asked to end, before it waits for requests
    that are being answered.

    Raises:
        InvalidInput: no access is given, and others can reach `host`.
    """
    from autosync.api.db.schema_migration import migrate  # loads alembic

    access = access or access_on(host)
    migrate(url)
    if log_requests:
        show_requests(sys.stderr)
    app = create_app(connect(url), access, limits)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=ProblemProtocol,
        log_level="warning",
        timeout_graceful_shutdown=GRACE_SECONDS,
    )

    def before_shutdown() -> None:
        on_shutdown()
        app.state.feed.close()  # who follows a tuning would be waited for

    server = ServiceServer(config, before_shutdown)
    with suppress(KeyboardInterrupt):  # which it raises again at its end
        server.run()
    if not server.started:
        sys.exit(STARTUP_FAILURE)
