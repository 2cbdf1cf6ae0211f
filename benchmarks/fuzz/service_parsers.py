"""What clients of the service send: requests, bodies, cursors, checkpoints; and measured tables."""

import asyncio
import base64
import json
import shutil
import string
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from fastapi import FastAPI

from autosync.api.db.database import Database, connect
from autosync.api.engine.service_limits import ServiceLimits
from autosync.api.http.access.access_rules import Access
from autosync.api.http.app import create_app
from autosync.api.http.named_documents import ranked_domain, tuning_request
from autosync.api.http.uploads import read_tuning
from autosync.api.prediction_spec import RankSpec
from autosync.api.views.paging import read_cursor, written_cursor
from autosync.documents import from_json
from autosync.simulator.learned.checkpoint import parse_card, restore
from autosync.simulator.learned.learned_simulator import LearnedSimulator
from autosync.simulator.runtime_dataset import load_dataset
from benchmarks.fuzz.document_parsers import FOLDER
from benchmarks.fuzz.fuzzed_parser import FuzzedParser, used
from tests.api.checkpoints import checkpoint
from tests.api.databases import migrated_file
from tests.api.sample import finished
from tests.simulator.measurements import write_small

TOKEN = "open sesame"
TUNING: dict[str, Any] = {
    "graph": "ncf_sparse",
    "cluster": "example-4x1",
    "budget": 4,
    "proposals": 100,
    "optimizer": {"name": "adagrad", "elementwise": True, "state_tensors": 1},
    "space": {"reduce_scatter": False, "max_groups": 4, "pins": []},
    "simulator": "timeline",
    "byte_scale": 0.5,
    "time_scale": 2,
}


class AskedService:
    """The service as a server calls it, without one between."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app
        weakref.finalize(self, app.state.processes.close)  # nobody runs the application's own end

    def ask(self, data: bytes) -> None:
        """The request that the JSON describes; raises where the answer tells of a defect."""
        asked = described(data)
        path = quote(str(asked.get("path", "/")).encode("utf-8", "replace"), safe="/%")
        headers = asked.get("headers")
        body = asked.get("body", "")
        text = body if isinstance(body, str) else json.dumps(body)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": str(asked.get("method", "GET")).upper() or "GET",
            "path": unquote(path),
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": quote(_sent(asked.get("query", "")), safe=string.printable).encode(),
            "headers": [
                (_sent(name).lower(), _sent(value))
                for name, value in (headers.items() if isinstance(headers, dict) else ())
            ],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        asyncio.run(self._call(scope, text.encode("utf-8", "surrogatepass")))

    async def _call(self, scope: dict[str, Any], body: bytes) -> None:
        parts = [{"type": "http.request", "body": body, "more_body": False}]
        statuses: list[int] = []

        async def receive() -> dict[str, Any]:
            return parts.pop() if parts else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await self.app(scope, receive, send)
        assert statuses, "no answer"
        assert statuses[0] < 500 or statuses[0] == 503, f"answered {statuses[0]}"


def described(data: bytes) -> dict[str, Any]:
    """The request; what describes none is posted as it is."""
    try:
        asked = json.loads(data)
    except (ValueError, RecursionError):
        asked = None
    if isinstance(asked, dict):
        return asked
    headers = {"host": "testserver", "authorization": f"Bearer {TOKEN}"}
    body = data.decode("utf-8", "replace")
    return {"path": "/v1/graphs", "method": "POST", "headers": headers, "body": body}


def _sent(value: Any) -> bytes:
    """What a server lets through: it refuses control characters and more than bytes itself."""
    text = value if isinstance(value, str) else json.dumps(value)
    kept = (character for character in text.encode("latin-1", "replace") if character >= 32)
    return bytes(kept)[:4000]


def service_parsers() -> list[FuzzedParser]:
    database = _database()
    tuning = finished(database)
    often = ServiceLimits(wrong_tokens=1_000_000, requests=1_000_000)
    service = AskedService(create_app(database, Access(TOKEN, hosts=("testserver",)), often))
    card, weights = checkpoint(Path(FOLDER.name), LearnedSimulator())
    parsed_card = parse_card(card)

    def read_tuning_body(data: bytes) -> None:
        tuning_request(database, read_tuning(data))

    def read_card_beside(data: bytes) -> None:
        restore(parse_card(data), weights, "fuzzed")

    def read_tensors(data: bytes) -> None:
        restore(parsed_card, data, "fuzzed")

    def read_rank(data: bytes) -> None:
        with database.reading() as session:
            ranked_domain(session, from_json(RankSpec, data, "body"))

    rank = {key: TUNING[key] for key in ("graph", "cluster", "optimizer", "space", "proposals")}
    cursors = [written_cursor(1, 0.5, "é", 7).encode(), written_cursor(0, -1.0, "x", 0).encode()]
    return [
        FuzzedParser("rest-request", "json", requests(tuning), service.ask, share=0.2),
        FuzzedParser("rest-tuning", "json", [json.dumps(TUNING).encode()], read_tuning_body),
        FuzzedParser("rest-rank", "json", [json.dumps(rank).encode()], read_rank),
        FuzzedParser("cursor", "bytes", cursors, read_page),
        FuzzedParser("cursor-key", "json", [b'[1, 0.5, "name", 7]'], read_key),
        FuzzedParser("checkpoint-card", "json", [card], read_card_beside),
        FuzzedParser("checkpoint-tensors", "safetensors", [weights], read_tensors),
        *measured_tables(),
    ]


def read_page(data: bytes) -> None:
    read_cursor(data.decode("latin-1"), int, float, str, int)


def read_key(data: bytes) -> None:
    read_page(base64.urlsafe_b64encode(data))


def _database() -> Database:
    path = Path(FOLDER.name, "service.db")
    shutil.move(migrated_file(Path(FOLDER.name)), path)
    return connect(f"sqlite:///{path}")


def requests(tuning: str) -> list[bytes]:
    """Of most paths, as a client sends them."""
    right = {"host": "testserver", "authorization": f"Bearer {TOKEN}"}
    basic = base64.b64encode(f"me:{TOKEN}".encode()).decode()
    browser = {"host": "testserver", "authorization": f"Basic {basic}", "accept": "text/html"}
    posted = {**right, "content-type": "application/json", "origin": "http://testserver"}
    read = {
        "/v1/graphs": "limit=3&cursor=W10",
        "/v1/tunings": "limit=2&status=done&sort=newest",
        f"/v1/tunings/{tuning}": "",
        f"/v1/tunings/{tuning}/trials": "limit=5",
        f"/v1/tunings/{tuning}/strategies": "limit=5",
        f"/v1/tunings/{tuning}/bundle": "rank=1",
        "/v1/runtimes.csv": "graph=ncf",
        "/v1/schemas/Strategy": "",
        "/v1/simulators/versions": "",
    }
    cluster = "name: a\nnodes:\n- {address: n1, devices: [{type: t4}], bandwidth_gbps: 9}\n"
    in_yaml = {**posted, "content-type": "application/yaml"}
    form = {**browser, "content-type": "application/x-www-form-urlencoded"}
    written: dict[str, tuple[dict[str, str], Any]] = {
        "/v1/tunings": (posted, {**TUNING, "graph": "nothing"}),
        "/v1/rank": (posted, {"graph": "nothing"}),
        "/v1/clusters": (in_yaml, cluster),
        "/v1/graphs": (posted, {"name": "a"}),
        "/tunings": (form, "graph=nothing&cluster=example-4x1&budget=4"),
        f"/v1/tunings/{tuning}/cancel": (posted, ""),
    }
    asked: list[dict[str, Any]] = [
        *({"path": path, "query": query} for path, query in read.items()),
        {"path": "/v1/limits", "headers": {"if-none-match": '"a", W/"b"', **right}},
        {"path": f"/tunings/{tuning}", "headers": browser},
        {"path": "/", "query": "page=1&q=ncf", "headers": browser},
        *(
            {"path": path, "method": "POST", "headers": headers, "body": body}
            for path, (headers, body) in written.items()
        ),
    ]
    return [json.dumps({"method": "GET", "headers": right, **each}).encode() for each in asked]


def measured_tables() -> Iterator[FuzzedParser]:
    """Of the two files of a measured dataset, in FOLDER."""
    folder = Path(FOLDER.name, "dataset")
    if not folder.exists():
        folder.mkdir()
        write_small(folder)
    for name in ("trials", "strategies"):
        path = folder / f"{name}.parquet"
        read = partial(read_dataset, path, path.read_bytes())
        yield FuzzedParser(f"{name}-table", "bytes", [path.read_bytes()], read, share=0.05)


def read_dataset(path: Path, whole: bytes, data: bytes) -> None:
    """With the other file as it was written."""
    try:
        path.write_bytes(data)
        used(len(load_dataset(path.parent)))
    finally:
        path.write_bytes(whole)
