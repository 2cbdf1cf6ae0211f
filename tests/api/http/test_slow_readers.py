"""Who reads slowly, or not at all, holds up nobody: exports are few, and readers of nothing cut
off."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.exc import TimeoutError as PoolTimeout
from uvicorn import Config
from uvicorn.server import ServerState

from autosync.api.db import Database
from autosync.api.db.database import connect
from autosync.api.engine.service_limits import ServiceLimits, TryLater
from autosync.api.http.app import create_app
from autosync.api.http.slow_readers import (
    LEAST_BYTES,
    MOST_EXPORTS,
    SLOW_SECONDS,
    BoundedProtocol,
    ExportReaders,
)
from tests.api.sample import finished

SMALL_BUFFER_BYTES = 4096
ENDLESS_BYTES = 64 * 2**20
"""More than sockets hold."""


def test_a_client_reads_a_few_exports_at_once_and_all_some_more() -> None:
    readers = ExportReaders(ServiceLimits(exports=2))
    for client in ("alice", "alice", "bob"):
        readers.begin(client)
    with pytest.raises(TryLater, match="2 exports of yours and 3 of all") as refused:
        readers.begin("alice")
    assert "--limit exports=NUMBER" in refused.value.remedy
    readers.end("alice")
    readers.begin("alice")
    for number in range(MOST_EXPORTS - 3):
        readers.begin(f"client {number}")
    with pytest.raises(TryLater):
        readers.begin("carol")


def test_one_export_too_many_is_refused_for_now_and_each_is_given_back(sqlite: Database) -> None:
    finished(sqlite)
    app = create_app(sqlite, limits=ServiceLimits(exports=1))
    with TestClient(app, base_url="http://127.0.0.1", client=("192.0.2.1", 1)) as client:
        for kind in ("csv", "jsonl", "parquet", "zip"):
            assert client.get(f"/v1/runtimes.{kind}").status_code == 200
        app.state.export_readers.begin("192.0.2.1")
        for kind in ("csv", "jsonl", "parquet", "zip"):
            answer = client.get(f"/v1/runtimes.{kind}")
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) > 0


@pytest.fixture
def full(sqlite_url: str) -> Iterator[Database]:
    """A database with one connection, which is in use."""
    database = connect(sqlite_url, {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0})
    yield database
    database.close()


def test_a_pool_without_a_free_connection_is_503_and_health_has_its_own(full: Database) -> None:
    with TestClient(create_app(full), base_url="http://127.0.0.1") as client:
        client.get("/v1/tunings")
        with full.reading() as session:
            session.connection()
            with pytest.raises(PoolTimeout), full.reading() as other:
                other.connection()
            for path in ("/v1/tunings", "/v1/graphs", "/models", "/metrics"):
                answer = client.get(path)
                assert answer.status_code == 503, path
                assert int(answer.headers["retry-after"]) > 0
            assert client.get("/v1/health").status_code == 200
            assert client.get("/v1/ready").json()["workers"] == 0
        assert client.get("/v1/tunings").status_code == 200


async def endless(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": bytes(ENDLESS_BYTES)})


def test_who_takes_nothing_is_cut_off_and_who_reads_is_not() -> None:
    """The test lets the time of both pass, as often as the one who reads has read enough."""

    async def connect_and_ask(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=SMALL_BUFFER_BYTES)
        writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        return reader, writer

    async def read() -> int:
        """What the one who reads has got in all."""
        config = Config(endless, log_level="warning")
        config.load()
        state = ServerState()
        made: list[BoundedProtocol] = []

        def protocol() -> BoundedProtocol:
            made.append(BoundedProtocol(config, state, {}))
            return made[-1]

        loop = asyncio.get_running_loop()
        server = await loop.create_server(protocol, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        _, silent = await connect_and_ask(port)
        reader, writer = await connect_and_ask(port)
        while len(made) < 2 or not all(each._timer for each in made):
            await asyncio.sleep(0.01)
        got, slow, fast = 0, *made
        for _ in range(3):
            unread = fast.transport.get_write_buffer_size()
            while fast.transport.get_write_buffer_size() > unread - LEAST_BYTES:
                got += len(await reader.read(2**20))
            for each in (slow, fast):
                if (timer := each._timer) is not None:
                    assert 0 < timer.when() - loop.time() <= SLOW_SECONDS
                    timer._run()
            while slow in state.connections:  # aborted
                await asyncio.sleep(0.01)
            assert fast in state.connections
        while part := await reader.read(2**20):
            got += len(part)
        silent.close()
        writer.close()
        server.close()
        return got

    assert asyncio.run(asyncio.wait_for(read(), 120)) > ENDLESS_BYTES
