"""The service does what its OpenAPI document says, for requests nobody thought of."""

import json
from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import SearchStrategy
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from autosync.api.db import Database
from autosync.api.engine.worker_registry import register
from autosync.api.http.app import create_app
from autosync.api.http.security import Access
from tests.api.sample import finished

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXAMPLES = 3


@pytest.fixture
def api(sqlite: Database) -> BaseSchema:
    finished(sqlite)
    register(sqlite, "worker", lease_seconds=3600.0, gpus=0)  # without one it is not ready: 503
    app = create_app(sqlite, Access(hosts=("testserver", "localhost")))
    return schemathesis.openapi.from_asgi("/openapi.json", app)


def test_requests_nobody_thought_of(api: BaseSchema) -> None:
    every = list(api.get_all_operations())
    operations = [found.ok() for found in every if isinstance(found, Ok)]
    assert len(operations) == len(every), "a path is invalid"
    assert len(operations) >= 19
    for operation in operations:
        try_examples(operation.as_strategy())
        with suppress(Unsatisfiable):  # a request that takes nothing cannot be wrong
            try_examples(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))


def try_examples(cases: SearchStrategy[Case[Any]]) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def run(case: Case[Any]) -> None:
        case.call_and_validate(checks=CHECKS)

    run()


def test_the_document_refers_to_nothing_it_lacks(sqlite: Database) -> None:
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        document = client.get("/openapi.json").json()
    text = json.dumps(document)
    referred = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert referred <= set(document["components"]["schemas"])
    assert {"Strategy", "ModelGraph", "Bundle", "Problem", "Tuning"} <= referred | set(
        document["components"]["schemas"]
    )
    assert all(path.startswith("/v1/") for path in document["paths"])
