"""The service: REST API and dashboard over one database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from autosync.api.db.database import Database, connect
from autosync.api.db.schema_migration import migrate
from autosync.api.http import openapi, problems
from autosync.api.http.body_limits import MAX_BODY_BYTES, BodyLimit
from autosync.api.http.page_templates import error_page
from autosync.api.http.routes import (
    document_pages,
    document_routes,
    pages,
    service_routes,
    simulator_routes,
    tuning_pages,
    tuning_routes,
    version_routes,
)
from autosync.api.http.security import Access, Guard, access_on

STATIC = Path(__file__).parent / "static"
GRACE_SECONDS = 3
"""On shutdown, event streams that are still open are cut off after this."""


def create_app(
    database: Database, access: Access | None = None, max_body_bytes: int = MAX_BODY_BYTES
) -> FastAPI:
    """The ASGI application. The database must be migrated; it is closed at the end."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        database.close()

    app = FastAPI(title="AutoSync", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.database = database
    routes = (document_routes, tuning_routes, version_routes, simulator_routes, service_routes)
    shown = (pages, tuning_pages, document_pages)
    for module in (*routes, *shown):  # versions before the names of simulators
        app.include_router(module.router)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    problems.install(app, error_page)
    openapi.install(app)
    app.add_middleware(BodyLimit, max_body_bytes=max_body_bytes)
    app.add_middleware(Guard, access=access or Access())
    return app


def serve(
    url: str,
    host: str = "127.0.0.1",
    port: int = 8080,
    access: Access | None = None,
) -> None:
    """Migrate the database and serve until interrupted. Workers run elsewhere
    (`autosync.api.engine.queue_worker`).

    access: by default whoever reaches a loopback address.

    Raises:
        InvalidInput: no access is given, and others can reach `host`.
    """
    access = access or access_on(host)
    migrate(url)
    app = create_app(connect(url), access)
    uvicorn.run(
        app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=GRACE_SECONDS
    )
