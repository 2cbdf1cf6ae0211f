"""Which requests are heavy, and the middleware that has them answered in a bounded process.

Heavy is what predicts, and what parses more than a little of what clients uploaded. Everything else
is answered in the service's own process.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from sqlalchemy import func, select
from sqlalchemy.exc import DatabaseError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autosync.api.db.database import Database
from autosync.api.db.tables import (
    ClusterRow,
    DomainRow,
    GraphRow,
    StrategyRow,
    StrategySummaryRow,
    TrialRow,
    TuningRow,
)
from autosync.api.engine.database_store import next_part
from autosync.api.http.access.guard import authorized, check_scope, methods_of, refusal_for
from autosync.api.http.answer_processes import CLIENT_LEFT, AnswerProcesses, Lane
from autosync.api.http.document_sizes import cluster_size, graph_size
from autosync.api.http.routes.pages import LIKE
from autosync.errors import AutosyncError

SMALL_JSON_BYTES = 128 * 1024
"""Of JSON that is parsed in the service: some 10 ms. Most bundled models are smaller."""
SMALL_YAML_BYTES = 4 * 1024
"""Of YAML: some 20 ms. JSON is YAML, so that all clusters count as such."""
SMALL_WORK = 8192
"""Variables times devices of a domain whose strategies are played in the service."""
PART_HEADER = b"content-disposition"
"""In lower case: each part of a form in parts has it (RFC 7578, 4.2)."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a request makes its process parse and play. json_bytes, yaml_bytes: of documents. work:
    variables times devices."""

    json_bytes: int = 0
    yaml_bytes: int = 0
    work: int = 0

    @property
    def is_heavy(self) -> bool:
        return (
            self.json_bytes > SMALL_JSON_BYTES
            or self.yaml_bytes > SMALL_YAML_BYTES
            or self.work > SMALL_WORK
        )


LoadOf = Callable[[Database, Mapping[str, str], bytes], Load]
"""Of a request, by its parameters of path and query, and its body."""


def _posted_json(database: Database, given: Mapping[str, str], body: bytes) -> Load:
    return Load(json_bytes=len(body))


def _posted_yaml(database: Database, given: Mapping[str, str], body: bytes) -> Load:
    return Load(yaml_bytes=len(body))


def _posted_log(database: Database, given: Mapping[str, str], body: bytes) -> Load:
    """Lines of a log take as long as JSON of their bytes; the cluster that it names is parsed."""
    with database.reading() as session:
        cluster_bytes, _ = cluster_size(session, given["cluster_id"])
    return Load(json_bytes=len(body) + cluster_bytes)


def _posted_log_by_form(database: Database, given: Mapping[str, str], body: bytes) -> Load:
    """As `_posted_log`; heavy, whatever its size, since a part of the form names the cluster."""
    return Load(json_bytes=SMALL_JSON_BYTES + 1)


def _started(database: Database, given: Mapping[str, str], body: bytes) -> Load:
    """A tuning: the body, and the graph and cluster that it names."""
    if len(body) > SMALL_JSON_BYTES:
        return Load(json_bytes=len(body))
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):  # refused where it is read as a request
        return Load()
    return _named(database, asked if isinstance(asked, dict) else {})


def _started_by_form(database: Database, given: Mapping[str, str], body: bytes) -> Load:
    """As `_started`, of the dashboard's form, with the tuning that it was filled in from. Browsers
    send it in one part; one in several is heavy, whatever it names."""
    if PART_HEADER in body.lower():
        return Load(json_bytes=SMALL_JSON_BYTES + 1)
    fields = dict(parse_qsl(body.replace(b";", b"&").decode("utf-8", "replace")))
    named = _named(database, fields)
    like = _of_request(database, {"tuning_id": fields.get(LIKE, "")}, body)
    return Load(named.json_bytes + like.json_bytes, work=named.work + like.work)


def _named(database: Database, asked: Mapping[str, object]) -> Load:
    """A graph and a cluster by name or id; what is not there is refused where it is looked for."""
    graph, cluster = str(asked.get("graph", "")), str(asked.get("cluster", ""))
    with database.reading() as session:
        json_bytes, variables = graph_size(session, graph)
        cluster_bytes, devices = cluster_size(session, cluster)
    return Load(json_bytes + cluster_bytes, work=variables * devices)


def _of_tuning(database: Database, given: Mapping[str, str], body: bytes) -> Load:
    """The domain of the tuning that the address names, and what may be pinned in its space."""
    query = (
        select(
            func.sum(func.length(GraphRow.document) + func.length(DomainRow.cluster)),
            func.sum(func.length(TuningRow.space)),
            func.sum(GraphRow.variables * ClusterRow.world_size),
        )
        .select_from(TuningRow)
        .join(DomainRow, DomainRow.id == TuningRow.domain_id)
        .join(GraphRow, GraphRow.id == DomainRow.graph_id)
        .join(ClusterRow, ClusterRow.id == TuningRow.cluster_id)
        .where(TuningRow.id == _id(given.get("tuning_id", "")))
    )
    with database.reading() as session:
        domain_bytes, space_bytes, work = session.execute(query).one()
    return Load(int(domain_bytes or 0) + int(space_bytes or 0), work=int(work or 0))


def _of_request(database: Database, given: Mapping[str, str], body: bytes) -> Load:
    """As `_of_tuning`, with the earlier trials that it was given."""
    of_tuning = _of_tuning(database, given, body)
    earlier = select(func.length(TuningRow.earlier)).where(TuningRow.id == _id(given["tuning_id"]))
    with database.reading() as session:
        json_bytes = of_tuning.json_bytes + int(session.scalar(earlier) or 0)
    return replace(of_tuning, json_bytes=json_bytes)


def _of_strategies(database: Database, given: Mapping[str, str], body: bytes) -> Load:
    """As `_of_request`, with all strategies of the tuning and what its trials recorded."""
    of_request, tuning_id = _of_request(database, given, body), _id(given["tuning_id"])
    strategies = (
        select(func.sum(func.length(StrategyRow.document)))
        .select_from(StrategyRow)
        .join(StrategySummaryRow, StrategySummaryRow.strategy_hash == StrategyRow.hash)
        .where(StrategySummaryRow.tuning_id == tuning_id)
    )
    timelines = select(func.sum(func.length(TrialRow.timeline)))
    recorded = timelines.where(TrialRow.tuning_id == tuning_id)
    with database.reading() as session:
        json_bytes = sum(int(session.scalar(each) or 0) for each in (strategies, recorded))
    return replace(of_request, json_bytes=of_request.json_bytes + json_bytes)


def _of_part(database: Database, given: Mapping[str, str], body: bytes) -> Load:
    """Of the strategies and trials that a worker gets at once."""
    number = given.get("first", "")
    first = int(number) if number.isdecimal() and len(number) < 10 else 0  # else refused later
    with database.reading() as session:
        return Load(json_bytes=next_part(session, _id(given["tuning_id"]), first)[1])


def _of_home(database: Database, given: Mapping[str, str], body: bytes) -> Load:
    """The tuning, if one is named, that the form is filled in from."""
    like = given.get(LIKE, "")
    return _of_request(database, {"tuning_id": like}, body) if like else Load()


def _id(text: str) -> str:
    """What may be looked up: PostgreSQL refuses some characters."""
    return text if text.isalnum() else ""


def _proposed(database: Database, given: Mapping[str, str], body: bytes) -> Load:
    """By a worker: strategies, which are described for the tuning's domain."""
    of_tuning = _of_tuning(database, given, body)
    return Load(json_bytes=len(body) + of_tuning.json_bytes)


def _of_model(database: Database, given: Mapping[str, str], body: bytes) -> Load:
    with database.reading() as session:
        return Load(json_bytes=graph_size(session, given["name"])[0])


def _of_cluster(database: Database, given: Mapping[str, str], body: bytes) -> Load:
    with database.reading() as session:
        return Load(json_bytes=cluster_size(session, given["name"])[0])


READING: dict[tuple[str, str], LoadOf] = {
    ("POST", "/v1/graphs"): _posted_json,
    ("POST", "/models"): _posted_json,
    ("POST", "/v1/clusters"): _posted_yaml,
    ("POST", "/v1/clusters/{cluster_id}/calibrate"): _posted_log,
    ("POST", "/clusters/calibrate"): _posted_log_by_form,
    ("POST", "/clusters"): _posted_yaml,
    ("PUT", "/v1/simulators/{name}"): _posted_json,
    ("POST", "/v1/tunings"): _started,
    ("POST", "/tunings"): _started_by_form,
    ("PATCH", "/v1/tunings/{tuning_id}"): _posted_json,
    ("PUT", "/v1/queue/workers"): _posted_json,
    ("POST", "/v1/queue/claims"): _posted_json,
    **{
        (method, f"/v1/queue/claims/{{tuning_id}}/{{fence}}/{what}"): _posted_json
        for method, what in (
            *(("POST", "trials"), ("POST", "answer")),
            *(("POST", "renewal"), ("POST", "events"), ("POST", "failure"), ("POST", "end")),
            ("PUT", "domain"),
        )
    },
    ("POST", "/v1/queue/claims/{tuning_id}/{fence}/proposals"): _proposed,
    ("GET", "/v1/queue/claims/{tuning_id}/{fence}/work"): _of_request,
    ("GET", "/v1/queue/claims/{tuning_id}/{fence}/trials"): _of_part,
    ("GET", "/"): _of_home,
    ("GET", "/models/{name}"): _of_model,
    ("GET", "/clusters/{name}"): _of_cluster,
    **{
        ("GET", path): _of_strategies
        for path in (
            "/v1/tunings/{tuning_id}/buckets",
            "/v1/tunings/{tuning_id}/measured",
            "/tunings/{tuning_id}/frameworks",
        )
    },
    **{
        ("GET", path): _of_tuning
        for path in (
            "/v1/tunings/{tuning_id}/bundle",
            "/v1/tunings/{tuning_id}/settings",
            "/v1/tunings/{tuning_id}/timeline",
            "/v1/tunings/{tuning_id}/trace",
            "/v1/tunings/{tuning_id}/domain",
            "/tunings/{tuning_id}/charts",
            "/tunings/{tuning_id}/why",
            "/tunings/{tuning_id}/compare",
            "/tunings/{tuning_id}/strategies/{strategy_id}",
        )
    },
}
"""Heavy where the load is. A page that parses documents stands here. So does what takes JSON under
a limit of `OF_BODIES`: its scope is looked at before the body is read."""
PREDICTING = (
    ("POST", "/v1/rank"),
    ("POST", "/v1/predict"),
    ("POST", "/v1/compare"),
    ("POST", "/v1/scale"),
    ("POST", "/v1/collectives"),
    *(("GET", f"/predict/{part}") for part in ("strategies", "scale", "collectives")),
)
"""Always heavy."""
FORWARDED = (
    *("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string"),
    *("root_path", "headers", "client", "server"),
)
"""Of a scope, what another process can use."""


def heavy_routes(routes: Iterable[BaseRoute]) -> "list[tuple[APIRoute, Lane, LoadOf | None]]":
    """Those of the tables above, each of which must be there."""
    known = {
        (method, route.path): route
        for route in routes
        if isinstance(route, APIRoute)
        for method in methods_of(route)
    }
    found: list[tuple[APIRoute, Lane, LoadOf | None]] = [
        (known[key], "reading", load_of) for key, load_of in READING.items()
    ]
    return found + [(known[key], "predicting", None) for key in PREDICTING]


class HeavyRequests:
    """ASGI middleware, the innermost one: it stands where clients are known and bodies limited."""

    def __init__(
        self,
        app: ASGIApp,
        routes: Iterable[BaseRoute],
        database: Database,
        processes: AnswerProcesses,
    ):
        self.app = app
        self.routes = heavy_routes(routes)
        self.database = database
        self.processes = processes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (found := self._matching(scope)) is None:
            return await self.app(scope, receive, send)
        lane, load_of, matched = found
        scope["route"] = matched["route"]  # for the metrics
        request = Request({**scope, **matched}, receive)
        answer: Response | None = None
        try:
            check_scope(request)
            body = await request.body()
            if load_of is not None:
                given = {**request.query_params, **request.path_params}
                load = await run_in_threadpool(load_of, self.database, given, body)
            if load_of is None or load.is_heavy:
                await authorized(request)  # of a form it reads the body
                answer = await self._answered_apart(request, lane, body)
        except ClientDisconnect:
            return
        except (AutosyncError, DatabaseError, PoolTimeout, HTTPException) as error:
            answer = refusal_for(request, error)
        finally:
            await request.close()  # of a form its files
        if answer is not None:
            return await answer(scope, receive, send)
        await self.app(scope, _again(body, receive), send)

    def _matching(self, scope: Scope) -> "tuple[Lane, LoadOf | None, Scope] | None":
        """Of the first route that fits, with what it adds to the scope."""
        for route, lane, load_of in self.routes:
            match, matched = route.matches(scope)
            if match is Match.FULL:
                return lane, load_of, matched
        return None

    async def _answered_apart(self, request: Request, lane: Lane, body: bytes) -> Response:
        """The process ends with its client."""
        scope: dict[str, Any] = {
            name: request.scope[name] for name in FORWARDED if name in request.scope
        }
        scope["state"] = dict(request.scope["state"])
        client = str(request.state.client)
        answering = asyncio.ensure_future(self.processes.answer(lane, client, scope, body))
        leaving = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                return Response(status_code=CLIENT_LEFT)
            answer = answering.result()
        finally:
            for task in (answering, leaving):
                task.cancel()
            with suppress(asyncio.CancelledError, AutosyncError):
                await answering
        response = Response(answer.body, answer.status)
        response.raw_headers = list(answer.headers)
        return response


async def _left(request: Request) -> None:
    """Returns when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _again(body: bytes, receive: Receive) -> Receive:
    """The body once more, whole, and then what comes."""
    sent = False

    async def received() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return received
