"""More requests at once than there are threads and connections."""

import asyncio

import httpx

from autosync.api.db import Database
from autosync.api.db.database import POOL
from autosync.api.http.app import create_app

AT_ONCE = 3 * (POOL["pool_size"] + POOL["max_overflow"])


def test_requests_that_wait_for_a_connection_keep_none_from_being_given_back(
    sqlite: Database,
) -> None:
    app = create_app(sqlite)

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await asyncio.gather(*(client.get("/v1/health") for _ in range(AT_ONCE)))

    assert {answer.status_code for answer in asyncio.run(ask())} == {200}
