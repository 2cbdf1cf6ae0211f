"""No route without a scope: every one of them, asked with every kind of key."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from starlette.routing import Mount

from autosync.api.db import Database
from autosync.api.db.tables import SCOPES
from autosync.api.engine.api_keys import make_key
from autosync.api.engine.service_limits import ServiceLimits
from autosync.api.http.access.guard import methods_of, scopes_of
from autosync.api.http.answer_process import ForwardedAnswer
from autosync.api.http.answer_processes import AnswerProcesses
from autosync.api.http.app import API, PAGES, create_app
from autosync.api.http.page_templates import TEMPLATES
from autosync.api.http.routes.pages import login_router
from autosync.api.http.routes.service_routes import open_router
from autosync.api.spec import KeyScope
from tests.api.http.forms import given_token

OFTEN = ServiceLimits(requests=1_000_000)
BY_ITSELF = {
    ("PUT", "/v1/simulators/{name}"): "admin",
    ("DELETE", "/v1/simulators/{name}"): "admin",
    ("POST", "/v1/simulators/versions/{number}/promote"): "admin",
    ("POST", "/v1/simulators/trainings"): "admin",
    ("GET", "/v1/keys"): "admin",
    ("POST", "/v1/keys"): "admin",
    ("POST", "/v1/keys/{key_id}/revoke"): "admin",
    ("POST", "/simulators/trainings"): "admin",
    ("POST", "/simulators/{number}/promote"): "admin",
    ("PUT", "/v1/queue/workers"): "worker",
    ("DELETE", "/v1/queue/workers/{worker}"): "worker",
    ("POST", "/v1/queue/claims"): "worker",
    **{
        (method, f"/v1/queue/claims/{{tuning_id}}/{{fence}}{part}"): "worker"
        for method, part in (
            ("GET", "/trials"),
            *(("GET", ""), ("POST", "/renewal"), ("GET", "/work"), ("GET", "/simulator")),
            *(("GET", "/time"), ("POST", "/proposals"), ("POST", "/trials"), ("POST", "/events")),
            *(("PUT", "/domain"), ("POST", "/answer"), ("POST", "/failure"), ("POST", "/end")),
        )
    },
}
"""What does not follow from the method: GET is read, all else tune."""
ALLOWED = {
    "read": {"read"},
    "tune": {"read", "tune"},
    "worker": {"worker"},
    "admin": {"read", "tune", "worker", "admin"},
}
"""What a key of each scope is let through to."""
OPEN = {
    ("GET", "/v1/health"),
    ("GET", "/v1/ready"),
    ("GET", "/login"),
    ("POST", "/login"),
    ("POST", "/logout"),
}
"""What looks at no scope; a log out needs a session all the same."""
SCOPED = {
    (method, path): scope
    for router in (*API, *PAGES)
    for (path, method), scope in scopes_of(router).items()
}


@pytest.fixture
def client(sqlite: Database) -> Iterator[TestClient]:
    make_key(sqlite, "first", "admin")
    with TestClient(create_app(sqlite, limits=OFTEN), base_url="http://127.0.0.1") as client:
        yield client


def headers(database: Database, scope: KeyScope) -> dict[str, str]:
    return {"authorization": f"Bearer {make_key(database, scope, scope).text}"}


def test_scopes_are_those_of_the_table() -> None:
    usual = {key: "read" if key[0] == "GET" else "tune" for key in SCOPED}
    assert {**usual, **BY_ITSELF} == SCOPED
    assert len(SCOPED) > 60


def test_no_route_is_outside_of_the_table(client: TestClient) -> None:
    """Only what is open, the document of all routes, and files that come with the package."""
    open_routes = {
        (method, route.path)
        for router in (open_router, login_router)
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in methods_of(route)
    }
    assert open_routes == OPEN
    paths = {path for _, path in (*SCOPED, *open_routes)}
    for route in client.app.routes:  # type: ignore[attr-defined]
        known = getattr(route, "path", None)
        if isinstance(route, Mount):
            assert known == "/static"
        elif known is not None:
            assert known in {*paths, "/openapi.json"}
    documented = {
        (method.upper(), path)
        for path, operations in client.app.openapi()["paths"].items()  # type: ignore[attr-defined]
        for method in operations
    }
    api = {key for key in SCOPED if key[1].startswith("/v1")}
    assert documented == api | {key for key in OPEN if key[1].startswith("/v1")}


def test_every_route_with_a_key_of_each_scope(
    client: TestClient, sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes as far as a process for predictions has been let through."""

    async def let_through(*_: object) -> ForwardedAnswer:
        return ForwardedAnswer(422, [], b"")

    monkeypatch.setattr(AnswerProcesses, "answer", let_through)
    monkeypatch.setattr(AnswerProcesses, "prepare", lambda *_: None)
    for held in SCOPES:
        ask_every_route(client, held, headers(sqlite, held))


def ask_every_route(client: TestClient, held: KeyScope, shown: dict[str, str]) -> None:
    """Let through to whatever it says of an empty request, or 403; without a key 401."""
    for (method, path), needed in SCOPED.items():
        if path.endswith("/events"):
            continue  # lasts as long as its tuning; it is a GET like the others
        address = re.sub(r"\{.*?\}", "7", path)
        answer = client.request(method, address, headers=shown, follow_redirects=False)
        where = (held, method, path, answer.text[:200])
        assert answer.status_code != 401, where
        if needed not in ALLOWED[held]:
            assert answer.status_code == 403, where
            problem = answer.json()
            assert problem["thing"] == "scope", where
            assert f"needs {needed}" in problem["detail"]
            assert needed in problem["remedy"]
        elif answer.status_code == 403:  # a form of the dashboard lacks its token
            assert answer.json()["thing"] == "form_token", where
            assert not path.startswith("/v1")


def test_no_route_answers_a_stranger(client: TestClient) -> None:
    for method, path in SCOPED:
        answer = client.request(method, re.sub(r"\{.*?\}", "7", path), follow_redirects=False)
        assert answer.status_code == 401, (method, path)
        assert answer.headers["content-type"] == "application/problem+json"
    assert client.get("/openapi.json").status_code == 401


def test_the_document_says_which_scope_each_path_needs(
    client: TestClient, sqlite: Database
) -> None:
    document = client.get("/openapi.json", headers=headers(sqlite, "read")).json()
    assert set(document["components"]["securitySchemes"]) == {"bearer", "browser"}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            needed = SCOPED.get((method.upper(), path))
            told = [{"bearer": [needed]}, {"browser": [needed]}] if needed else []
            assert operation["security"] == told, (method, path)
            assert {"401", "403"} <= set(operation["responses"])


def test_every_form_of_the_dashboard_carries_its_token() -> None:
    forms = 0
    for path in Path(TEMPLATES).rglob("*.html"):
        for found in re.finditer(r'<form [^>]*method="post"[^>]*>(.{40})', path.read_text(), re.S):
            forms += 1
            assert found[1].startswith('{% include "parts/form_token.html" %}'), path
    assert forms >= 10


def test_pages_hide_what_a_scope_does_not_allow(client: TestClient, sqlite: Database) -> None:
    def page(scope: KeyScope, path: str) -> str:
        answer = client.get(path, headers={**headers(sqlite, scope), "accept": "text/html"})
        assert answer.status_code == 200
        return answer.text

    for path, form in (
        ("/", 'action="/tunings"'),
        ("/models", 'action="/models"'),
        ("/clusters", 'method="post" action="/clusters"'),
        ("/models/vgg16", "Tune it"),
    ):
        assert form not in page("read", path)
        assert form in page("tune", path)
    assert 'method="post"' not in page("tune", "/simulators")
    assert 'action="/simulators/trainings"' in page("admin", "/simulators")


def test_keys_over_rest(client: TestClient, sqlite: Database) -> None:
    admin = headers(sqlite, "admin")
    made = client.post("/v1/keys", json={"name": "bob", "scope": "read", "days": 2}, headers=admin)
    assert made.status_code == 201
    key = made.json().pop("key")
    of_bob = {"authorization": f"Bearer {key}"}
    assert client.get("/v1/tunings", headers=of_bob).status_code == 200
    listed = client.get("/v1/keys?limit=1", headers=admin)
    assert key.partition(".")[2] not in listed.text
    (newest,) = listed.json()["items"]
    assert (newest["name"], newest["scope"]) == ("bob", "read")
    assert newest["last_used_at"] is not None
    assert newest["expires_at"] is not None
    assert listed.json()["next"]
    revoked = client.post(f"/v1/keys/{newest['id']}/revoke", headers=admin)
    assert revoked.json()["revoked_at"] is not None
    assert client.get("/v1/tunings", headers=of_bob).status_code == 401
    assert client.post("/v1/keys/000000000000/revoke", headers=admin).status_code == 404
    wrong = client.post("/v1/keys", json={"name": "a b", "scope": "read"}, headers=admin)
    assert wrong.status_code == 422


def test_the_first_key_closes_an_open_service_and_is_its_operators(sqlite: Database) -> None:
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        now = [0.0]
        client.app.state.authentication.clock = lambda: now[0]  # type: ignore[attr-defined]
        assert client.get("/v1/tunings").status_code == 200
        refused = client.post("/v1/keys", json={"name": "planted", "scope": "admin"})
        assert refused.status_code == 409
        assert "autosync keys add" in refused.json()["remedy"]
        shown = headers(sqlite, "read")
        now[0] += 1.0
        assert client.get("/v1/tunings").status_code == 401
        assert client.get("/v1/tunings", headers=shown).status_code == 200


def test_keys_of_one_name_are_one_client(client: TestClient, sqlite: Database) -> None:
    for scope in ("tune", "admin"):
        shown = {"authorization": f"Bearer {make_key(sqlite, 'alice', scope).text}"}
        body = {"graph": "resnet50", "cluster": "example-4x1", "budget": 1}
        keyed = {**shown, "Idempotency-Key": "mine"}
        assert client.post("/v1/tunings", json=body, headers=keyed).status_code == 202
    assert client.get("/v1/tunings", headers=shown).json()["total"] == 1


def test_a_tune_key_starts_a_tuning_from_a_page(client: TestClient, sqlite: Database) -> None:
    client.headers.update(headers(sqlite, "tune"))
    form = {"graph": "resnet50", "cluster": "example-4x1", **given_token(client, "/")}
    assert client.post("/tunings", data=form, follow_redirects=False).status_code == 303
