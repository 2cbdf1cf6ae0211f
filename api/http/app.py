"""The service: REST API and dashboard over one database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from autosync.api.db.database import Database, connect
from autosync.api.db.schema_migration import migrate
from autosync.api.engine.service_limits import ServiceLimits
from autosync.api.http import openapi, problems
from autosync.api.http.body_limits import BodyLimit
from autosync.api.http.page_templates import error_page
from autosync.api.http.routes import (
    document_routes,
    pages,
    service_routes,
    simulator_routes,
    tuning_routes,
    version_routes,
)
from autosync.api.http.security import Access, Guard, access_on
from autosync.api.http.uploads import Uploads

STATIC = Path(__file__).parent / "static"
GRACE_SECONDS = 3
"""On shutdown, event streams that are still open are cut off after this."""


def create_app(
    database: Database, access: Access | None = None, limits: ServiceLimits | None = None
) -> FastAPI:
    """The ASGI application. The database must be migrated; it is closed at the end."""
    limits = limits or ServiceLimits()
    uploads = Uploads(database, limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        uploads.close()
        database.close()

    app = FastAPI(title="AutoSync", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.database = database
    app.state.uploads = uploads
    routes = (document_routes, tuning_routes, version_routes, simulator_routes, service_routes)
    for module in (*routes, pages):  # versions before the names of simulators
        app.include_router(module.router)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    problems.install(app, error_page)
    openapi.install(app)
    app.add_middleware(BodyLimit, limits=limits)
    app.add_middleware(Guard, access=access or Access(), limits=limits)
    return app


def serve(
    url: str,
    host: str = "127.0.0.1",
    port: int = 8080,
    access: Access | None = None,
    limits: ServiceLimits | None = None,
) -> None:
    """Migrate the database and serve until interrupted. Workers run elsewhere
    (`autosync.api.engine.queue_worker`).

    access: by default whoever reaches a loopback address.

    Raises:
        InvalidInput: no access is given, and others can reach `host`.
    """
    access = access or access_on(host)
    migrate(url)
    app = create_app(connect(url), access, limits)
    uvicorn.run(
        app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=GRACE_SECONDS
    )
