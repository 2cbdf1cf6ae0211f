"""The service does what its OpenAPI document says, for requests nobody thought of."""

import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import SearchStrategy
from schemathesis import Case, GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation, BaseSchema
from schemathesis.specs.openapi.checks import positive_data_acceptance

from autosync.api.db import Database
from autosync.api.engine.service_limits import ServiceLimits
from autosync.api.engine.worker_registry import register
from autosync.api.http.access.access_rules import Access
from autosync.api.http.app import create_app
from tests.api.sample import finished

TOKEN = "open sesame"
RIGHT = {"Authorization": f"Bearer {TOKEN}"}
"""A service that asks for a token: the checks try without it, too."""
PATIENCE_SECONDS = 200
"""Of a request: predictions wait for a process that starts, and other load may slow it down."""


@pytest.fixture
def api(sqlite: Database) -> Iterator[BaseSchema]:
    finished(sqlite)
    register(sqlite, "worker", lease_seconds=3600.0, gpus=0)  # without one it is not ready: 503
    often = ServiceLimits(wrong_tokens=1_000_000, requests=1_000_000)  # 429 is tested elsewhere
    app = create_app(sqlite, Access(TOKEN, hosts=("testserver", "localhost")), often)
    yield schemathesis.openapi.from_asgi("/openapi.json", app, headers=RIGHT)
    app.state.processes.close()  # nobody runs the application's own end here


@pytest.mark.parametrize(
    ("boundaries", "examples"), [(4, 1), pytest.param(40, 50, marks=pytest.mark.long)]
)
def test_requests_nobody_thought_of(api: BaseSchema, boundaries: int, examples: int) -> None:
    """Under all of schemathesis' checks: of each operation, so many cases at the
    boundaries and drawn at random."""
    every = list(api.get_all_operations())
    operations = [found.ok() for found in every if isinstance(found, Ok)]
    assert len(operations) == len(every), "a path is invalid"
    assert len(operations) >= 19
    wrong: list[str] = []
    for operation in operations:
        try_boundaries(api, operation, boundaries, wrong)
        try_examples(operation.as_strategy(), examples, wrong)
        with suppress(Unsatisfiable):  # a request that takes nothing cannot be wrong
            negative = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
            try_examples(negative, examples, wrong)
    assert not wrong, "\n".join(wrong)


def try_boundaries(
    api: BaseSchema, operation: APIOperation[Any, Any, Any, Any], most: int, wrong: list[str]
) -> None:
    """Least and greatest values, missing and repeated ones, other methods and media types."""
    cases = api.iter_coverage_cases(
        operation,
        generation_modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE],
        generation_config=api.config.generation_for(operation=operation),
    )
    for case in islice(cases, most):
        check(case, wrong)


def try_examples(cases: SearchStrategy[Case[Any]], count: int, wrong: list[str]) -> None:
    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def run(case: Case[Any]) -> None:
        check(case, wrong)

    run()


def check(case: Case[Any], wrong: list[str]) -> None:
    """A schema cannot say all that must hold of a body, as that what it refers to exists, nor which
    cursor a list has given."""
    beyond = case.operation.body or "cursor" in (case.query or {})
    excluded: list[Any] = [positive_data_acceptance] if beyond else []
    try:
        case.call_and_validate(headers=RIGHT, excluded_checks=excluded, timeout=PATIENCE_SECONDS)
    except FailureGroup as failures:
        wrong += [f"{case.operation.label}: {each}\n{failures}" for each in failures.exceptions]


def test_the_document_refers_to_nothing_it_lacks(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    text = json.dumps(document)
    referred = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert referred <= set(document["components"]["schemas"])
    assert {"Strategy", "ModelGraph", "Bundle", "Problem", "Tuning"} <= referred | set(
        document["components"]["schemas"]
    )
    assert all(path.startswith("/v1/") for path in document["paths"])


def test_every_path_tells_how_it_refuses(client: TestClient) -> None:
    for operations in client.get("/openapi.json").json()["paths"].values():
        for operation in operations.values():
            told = set(operation["responses"])
            assert {"401", "403", "422", "429", "500", "503"} <= told
            assert {"400", "413"} <= told or "requestBody" not in operation
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    assert "application/problem+json" in answer["content"], (operation, status)


def test_a_method_that_a_path_has_not_is_told_those_it_has(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    for path in paths:
        answer = client.request("TRACE", path.replace("{number}", "1"))
        assert answer.status_code == 405, path
        assert answer.headers["content-type"] == "application/problem+json"
        allowed = {method.strip().lower() for method in answer.headers["allow"].split(",")}
        assert allowed == set(paths[path]), path


def test_a_query_parameter_that_a_path_has_not_is_named(client: TestClient) -> None:
    for path, name in (
        ("/v1/tunings?limt=5", "limt"),
        ("/v1/runtimes.csv?domian=x", "domian"),
        ("/v1/health?verbose", "verbose"),
        ("/v1/tunings?limit=5&limit=6", "limit"),
    ):
        answer = client.get(path)
        assert answer.status_code == 422, path
        assert answer.json()["thing"] == name
        assert answer.json()["remedy"]
