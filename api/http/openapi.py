"""The OpenAPI document, with the schemas of the documents that are posted raw."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from autosync.api.engine.tuning_answer import TuningAnswer
from autosync.api.engine.tuning_request import TuningRequest
from autosync.api.http.access.browser import FORM_HEADER, SESSION_COOKIE
from autosync.api.http.problems import STATUSES
from autosync.api.prediction_spec import (
    CollectivesSpec,
    CompareSpec,
    PredictSpec,
    RankSpec,
    ScaleSpec,
)
from autosync.api.spec import KeyScope, TuningSpec
from autosync.api.views.schemas import Problem
from autosync.api.views.work_schemas import EarlierWork, ProposedTrials
from autosync.bundle import Bundle
from autosync.cluster import Cluster
from autosync.documents import json_schema
from autosync.domain import Domain, Profile
from autosync.environment import own_version
from autosync.exports.settings import FrameworkSettings
from autosync.graph import ModelGraph
from autosync.plan import Plan
from autosync.search.loop.settings import Settings
from autosync.search.space import Space
from autosync.strategy import Strategy
from autosync.trials.contract import MeasuredTimeline, TrialResult

DOCUMENTS: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        Bundle,
        Cluster,
        CollectivesSpec,
        CompareSpec,
        Domain,
        FrameworkSettings,
        MeasuredTimeline,
        ModelGraph,
        Plan,
        PredictSpec,
        Profile,
        RankSpec,
        ScaleSpec,
        Settings,
        Space,
        Strategy,
        TrialResult,
        TuningSpec,
    )
}
OF_WORKERS = (EarlierWork, ProposedTrials, TuningAnswer, TuningRequest)
"""Only workers and the service exchange them."""
DESCRIPTION = """Give it a model and a cluster; it answers with the fastest exact way to keep the
replicas of a data-parallel training job in step, ranked and measured.

Post a graph and a cluster (or name bundled ones), start a tuning, follow its events, fetch the
ranked strategies and the bundle that a training script applies.

Errors are `application/problem+json` and say what to do. A query parameter that a path does not
have is one (422); a method that it does not have is answered with 405 and `Allow`, an unknown path
with 404. Lists come in pages: `next` of one is the `cursor` of the following one. An answer with an
`ETag` is not sent again to who names it in `If-None-Match`.

A key has a scope: `read`, `tune`, which is also `read`, `worker`, which is neither, or `admin`,
which is all. Each path says which it needs. A service on loopback whose database has no key asks
for none."""
EVERYWHERE = (401, 403, 422, 429, 500, 503)
WITH_BODY = (400, 413)
RETRY_AFTER = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
ANSWER_HEADERS = {
    401: {"WWW-Authenticate": {"schema": {"type": "string"}}},
    429: RETRY_AFTER,
    503: RETRY_AFTER,
}
SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A key, `ID.SECRET`."},
    "browser": {
        "type": "apiKey",
        "in": "cookie",
        "name": SESSION_COOKIE,
        "description": "Of a browser that logged in. To change something it also sends "
        f"`{FORM_HEADER}`, which every page of the dashboard has.",
    },
}


def schema_of(name: str) -> dict[str, Any]:
    """JSON Schema of a document class, by its name."""
    return json_schema(DOCUMENTS[name])


def posted(name: str, *media_types: str) -> dict[str, Any]:
    """`openapi_extra` of a route that reads a document raw."""
    schema = {"$ref": f"#/components/schemas/{name}"}
    content = {media: {"schema": schema} for media in media_types}
    return {"requestBody": {"required": True, "content": content}}


def posted_text(description: str) -> dict[str, Any]:
    """`openapi_extra` of a route that reads text."""
    content = {"text/plain": {"schema": {"type": "string", "description": description}}}
    return {"requestBody": {"required": True, "content": content}}


def document_answer(name: str, description: str) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that sends a stored document as it is."""
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {200: {"description": description, "content": {"application/json": {"schema": schema}}}}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that refuses in these ways; those that all routes share are added to
    every one."""
    schema = {"$ref": "#/components/schemas/Problem"}
    content = {"application/problem+json": {"schema": schema}}
    return {status: {"description": STATUSES[status], "content": content} for status in statuses}


def install(app: FastAPI, scopes: Mapping[tuple[str, str], KeyScope], root_path: str = "") -> None:
    """scopes: by path and method, of all that ask for a key. root_path: before all paths."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _build(app, scopes, root_path)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # the framework's documented way


def _build(
    app: FastAPI, scopes: Mapping[tuple[str, str], KeyScope], root_path: str
) -> dict[str, Any]:
    document = get_openapi(
        title="AutoSync", version=own_version(), description=DESCRIPTION, routes=app.routes
    )
    if root_path:
        document["servers"] = [{"url": root_path}]
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    documented: tuple[type[Any], ...] = (*DOCUMENTS.values(), *OF_WORKERS, Problem)
    for cls in documented:
        schema = TypeAdapter(cls).json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[cls.__name__] = schema
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    document["components"]["securitySchemes"] = SCHEMES
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _add_shared_refusals(operation)
            needed = scopes.get((path, method.upper()))
            operation["security"] = [{name: [needed]} for name in SCHEMES] if needed else []
    return document


def _add_shared_refusals(operation: dict[str, Any]) -> None:
    statuses = (*EVERYWHERE, *(WITH_BODY if "requestBody" in operation else ()))
    responses = operation["responses"]
    responses.pop("422", None)  # the framework's own, in another form
    for status, refusal in refusals(*statuses).items():
        known = responses.setdefault(str(status), {"description": refusal["description"]})
        known["content"] = {**known.get("content", {}), **refusal["content"]}
    for status, headers in ANSWER_HEADERS.items():
        responses[str(status)]["headers"] = headers
    operation["responses"] = dict(sorted(responses.items()))
