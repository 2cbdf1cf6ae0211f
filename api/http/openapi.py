"""The OpenAPI document, with the schemas of the documents that are posted raw."""

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from autosync.api.http.schemas import Problem
from autosync.api.http.tuning_body import TuningBody
from autosync.bundle import Bundle
from autosync.cluster import Cluster
from autosync.documents import json_schema
from autosync.domain import Domain, Profile
from autosync.graph import ModelGraph
from autosync.plan import Plan
from autosync.search.loop.settings import Settings
from autosync.search.space import Space
from autosync.strategy import Strategy
from autosync.trials.contract import TrialResult
from autosync.trials.measured_timeline import MeasuredTimeline

DOCUMENTS: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        Bundle,
        Cluster,
        Domain,
        MeasuredTimeline,
        ModelGraph,
        Plan,
        Profile,
        Settings,
        Space,
        Strategy,
        TrialResult,
    )
}
DESCRIPTION = """Give it a model and a cluster; it answers with the fastest exact way to keep the
replicas of a data-parallel training job in step, ranked and measured.

Post a graph and a cluster (or name bundled ones), start a tuning, follow its events, fetch the
ranked strategies and the bundle that a training script applies. Errors are
`application/problem+json` and say what to do."""


def schema_of(name: str) -> dict[str, Any]:
    """JSON Schema of a document class, by its name."""
    return json_schema(DOCUMENTS[name])


def posted(name: str, *media_types: str) -> dict[str, Any]:
    """`openapi_extra` of a route that reads a document raw."""
    schema = {"$ref": f"#/components/schemas/{name}"}
    content = {media: {"schema": schema} for media in media_types}
    return {"requestBody": {"required": True, "content": content}}


def document_answer(name: str, description: str) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that sends a stored document as it is."""
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {200: {"description": description, "content": {"application/json": {"schema": schema}}}}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that refuses in these ways."""
    schema = {"$ref": "#/components/schemas/Problem"}
    content = {"application/problem+json": {"schema": schema}}
    titles = {
        400: "No JSON",
        404: "Not found",
        409: "Not possible",
        413: "Too large",
        422: "Invalid input",
        429: "Too many requests",
    }
    return {status: {"description": titles[status], "content": content} for status in statuses}


def install(app: FastAPI) -> None:
    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _build(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # the framework's documented way


def _build(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title="AutoSync", version=version("autosync"), description=DESCRIPTION, routes=app.routes
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    documented: tuple[type[Any], ...] = (*DOCUMENTS.values(), Problem, TuningBody)
    for cls in documented:
        schema = TypeAdapter(cls).json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[cls.__name__] = schema
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    return document
