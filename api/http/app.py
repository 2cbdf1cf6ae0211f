"""The service: REST API and dashboard over one database."""

import asyncio
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path

import uvicorn
from fastapi import APIRouter, Depends, FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.staticfiles import StaticFiles
from starlette.routing import BaseRoute

from autosync.api.db.database import Database, connect
from autosync.api.engine.job_queue import end_abandoned
from autosync.api.engine.service_limits import UNLIMITED, ServiceLimits
from autosync.api.http import openapi, problems
from autosync.api.http.access.access_rules import Access
from autosync.api.http.access.authentication import Authentication
from autosync.api.http.access.guard import Guard, authorized, scopes_of
from autosync.api.http.answer_processes import AnswerProcesses
from autosync.api.http.dependencies import READERS, refuse_unknown_parameters
from autosync.api.http.event_stream import EventFeed
from autosync.api.http.heavy_requests import HeavyRequests
from autosync.api.http.middleware import (
    BodyLimit,
    HeadRequests,
    RequestLog,
    RequestMetrics,
    show_requests,
)
from autosync.api.http.nul_characters import RefuseNul
from autosync.api.http.page_templates import compile_templates, error_page
from autosync.api.http.root_path import BelowRootPath
from autosync.api.http.routes import (
    document_pages,
    document_routes,
    pages,
    prediction_pages,
    prediction_routes,
    runtime_routes,
    service_routes,
    simulator_routes,
    tuning_pages,
    tuning_routes,
    work_routes,
)
from autosync.api.http.slow_readers import BoundedProtocol, ExportReaders
from autosync.api.views import documents, reports, service
from autosync.api.views.reports import TuningFilter

STATIC = Path(__file__).parent / "static"
API = (
    document_routes.router,
    tuning_routes.router,
    simulator_routes.router,
    runtime_routes.router,
    prediction_routes.router,
    work_routes.router,
    service_routes.router,
    service_routes.keys_router,
)
PAGES = (
    pages.router,
    tuning_pages.router,
    document_pages.router,
    prediction_pages.router,
    service_routes.metrics_router,
)
ROUTERS = (*API, *PAGES, service_routes.open_router, pages.login_router)
HEALTH_CONNECTIONS = 2
"""Of their own, which no other request can hold."""
UPKEEP_SECONDS = 15.0
"""Between two looks for tunings that were cancelled and whose workers are gone."""
GRACE_SECONDS = 1
"""On shutdown, event streams that are still open are cut off after this."""
STARTUP_FAILURE = 3
"""Exit code of a server that did not start: uvicorn's own, whose place depends on its version."""
log = logging.getLogger(__name__)


def create_app(
    database: Database,
    access: Access | None = None,
    limits: ServiceLimits | None = None,
    root_path: str = "",
) -> FastAPI:
    """The service. The database must be migrated; it is closed at the end.

    limits: without any (`UNLIMITED`) heavy requests are answered in this process.
    root_path: below which browsers see it, such as `/autosync`.
    """
    access, limits = access or Access(), limits or ServiceLimits()
    processes = None
    if limits != UNLIMITED:
        processes = AnswerProcesses(database, access, limits, root_path)
    health_database = database.apart(HEALTH_CONNECTIONS)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.openapi()  # made once, and not within the first request
        await run_in_threadpool(warm_up, database, root_path)
        keeping_up = asyncio.create_task(keep_up(database))
        yield
        keeping_up.cancel()
        app.state.feed.close()
        if processes is not None:
            processes.close()
        await asyncio.wait([keeping_up])  # its thread may have a connection
        health_database.close()
        database.close()

    app = application(database, access, limits, root_path)
    app.router.lifespan_context = lifespan
    app.state.processes = processes
    app.state.health_database = health_database
    app.state.health_readers = asyncio.Semaphore(HEALTH_CONNECTIONS)
    if processes is not None:
        routes = [route for router in (*API, *PAGES) for route in router.routes]
        app.add_middleware(HeavyRequests, routes=routes, database=database, processes=processes)
    app.add_middleware(HeadRequests)
    app.add_middleware(RefuseNul)
    app.add_middleware(BodyLimit, limits=limits)
    app.add_middleware(Guard, authentication=app.state.authentication)
    app.add_middleware(RequestLog, metrics=app.state.metrics)
    app.add_middleware(BelowRootPath, root_path=root_path)
    return app


def application(
    database: Database, access: Access, limits: ServiceLimits, root_path: str = ""
) -> FastAPI:
    """The routes alone, for callers who are known already (`request.state.caller`)."""
    app = FastAPI(title="AutoSync", docs_url=None, redoc_url=None, routes=all_routes())
    app.state.root_path = root_path
    app.state.access = access
    app.state.authentication = Authentication(database, access, limits)
    app.state.database = database
    app.state.limits = limits
    app.state.processes = None
    app.state.feed = EventFeed(database)
    app.state.metrics = RequestMetrics()
    app.state.readers = asyncio.Semaphore(READERS)
    app.state.export_readers = ExportReaders(limits)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    problems.install(app, error_page)
    scopes = {key: scope for router in API for key, scope in scopes_of(router).items()}
    openapi.install(app, scopes, root_path)
    return app


@cache
def all_routes() -> list[BaseRoute]:
    """Shared by the applications of a process: FastAPI takes a third of a second to look through
    what they ask for."""
    together = APIRouter()
    known = [Depends(refuse_unknown_parameters)]
    for router in API:
        together.include_router(router, dependencies=[Depends(authorized), *known])
    for shown in PAGES:
        together.include_router(shown, dependencies=[Depends(authorized)])
    together.include_router(service_routes.open_router, dependencies=known)
    together.include_router(pages.login_router)
    return together.routes


def warm_up(database: Database, root_path: str = "") -> None:
    """Compile templates and queries, for which the first requests would wait otherwise: reads one
    row of each list that dashboards and clients begin with."""
    compile_templates(root_path)
    with database.reading() as session:
        service.health(session)
        documents.graphs(session, 1)
        documents.clusters(session, 1)
        for tuning in reports.tunings(session, 1, None, TuningFilter(archived=False)).items:
            reports.ranked_strategies(session, tuning.id, 1)
            reports.trials(session, tuning.id, 1)


async def keep_up(database: Database) -> None:
    """Until it is cancelled; waits first. Says once that the database is away."""
    away = False
    while True:
        await asyncio.sleep(UPKEEP_SECONDS)
        try:
            await run_in_threadpool(end_abandoned, database)
            away = False
        except Exception as error:  # it may come back
            if not away:
                log.warning("cancelled tunings without a worker are not ended: %s", error)
            away = True


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
    sockets: Sequence[socket.socket],
    access: Access,
    limits: ServiceLimits | None = None,
    *,
    root_path: str = "",
    log_requests: bool = False,
    on_shutdown: Callable[[], None] = lambda: None,
) -> None:
    """Serve the migrated database until interrupted, on sockets that listen
    (`autosync.api.http.listening`). Workers run elsewhere (`autosync.api.engine.queue_worker`).

    root_path: as of `create_app`. log_requests: a line of JSON for each goes to stderr.
    on_shutdown: called as soon as it is asked to end, before it waits for requests that are being
    answered.
    """
    if log_requests:
        show_requests(sys.stderr)
    app = create_app(connect(url), access, limits, root_path)
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        log_level="warning",
        timeout_graceful_shutdown=GRACE_SECONDS,
    )

    def before_shutdown() -> None:
        on_shutdown()
        app.state.feed.close()  # who follows a tuning would be waited for

    server = ServiceServer(config, before_shutdown)
    with suppress(KeyboardInterrupt):  # which it raises again at its end
        server.run([*sockets])
    if not server.started:
        sys.exit(STARTUP_FAILURE)
