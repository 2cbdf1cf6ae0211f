"""The dashboard's log in, and what a hostile page, a stolen cookie or a careful browser come to."""

import re
from collections.abc import Callable, Iterator

import httpx
import pytest
from fastapi.testclient import TestClient
from playwright.sync_api import BrowserContext, expect

from autosync.api.db import Database
from autosync.api.engine.api_keys import make_key, revoke_key
from autosync.api.http.access.access_rules import Access, access_on
from autosync.api.http.access.browser import FORM_COOKIE, SESSION_COOKIE, local_address
from autosync.api.http.app import create_app
from autosync.api.views.paging import LONGEST_CURSOR
from tests.api.databases import opened
from tests.api.http.forms import given_token
from tests.api.http.serving import PATIENCE_SECONDS, served

ADDRESS = "http://127.0.0.1:8765"
HTML = {"accept": "text/html"}


@pytest.fixture
def client(sqlite: Database) -> Iterator[TestClient]:
    make_key(sqlite, "first", "admin")
    app = create_app(sqlite)
    with TestClient(app, base_url=ADDRESS, follow_redirects=False) as client:
        yield client


def logged_in(client: TestClient, key: str, following: str = "/") -> None:
    form = {"key": key, "next": following, **given_token(client, "/login")}
    answer = client.post("/login", data=form)
    assert answer.status_code == 303, answer.text
    assert answer.headers["location"] == following


def test_a_browser_is_led_to_the_log_in_and_back(client: TestClient, sqlite: Database) -> None:
    key = make_key(sqlite, "alice", "tune")
    led = client.get("/models?cursor=a%20b", headers=HTML)
    assert led.status_code == 303
    assert led.headers["location"] == "/login?next=/models%3Fcursor%3Da%2520b"
    assert 'value="/models?cursor=a%20b"' in client.get(led.headers["location"]).text
    late = client.get(f"/models?cursor={'a' * LONGEST_CURSOR}", headers=HTML)
    assert client.get(late.headers["location"]).status_code == 200
    wrong = {"key": f"{key.text[:-1]}!", **given_token(client, "/login")}
    refused = client.post("/login", data=wrong)
    assert refused.status_code == 401
    assert 'role="alert"' in refused.text
    assert SESSION_COOKIE not in client.cookies
    logged_in(client, key.text, "/models")
    page = client.get("/models", headers=HTML)
    assert page.status_code == 200
    assert "alice · tune" in page.text
    assert page.headers["cache-control"] == "no-store"
    fetched = client.get("/v1/tunings")
    assert fetched.status_code == 200, "what pages fetch"
    assert fetched.headers["cache-control"] == "no-store"
    by_key = client.get("/v1/tunings", headers={"authorization": f"Bearer {key.text}"})
    assert by_key.headers["cache-control"] == "private, no-cache"
    assert client.get("/v1/keys").status_code == 403


def test_cookies_are_kept_from_scripts_and_from_other_sites(
    client: TestClient, sqlite: Database
) -> None:
    key = make_key(sqlite, "alice", "read")
    form = {"key": key.text, **given_token(client, "/login")}
    answer = client.post("/login", data=form)
    (sent,) = answer.headers.get_list("set-cookie")
    assert sent.startswith(f"{SESSION_COOKIE}=")
    for part in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=43200"):
        assert part in sent
    assert "Secure" not in sent
    assert key.text not in sent


@pytest.mark.parametrize("told_by", ["--https", "proxy"])
def test_under_tls_cookies_are_sent_over_tls_alone(sqlite: Database, told_by: str) -> None:
    make_key(sqlite, "first", "admin")
    key = make_key(sqlite, "alice", "tune")
    app = create_app(sqlite, access_on("127.0.0.1", https=told_by == "--https"))
    address = ADDRESS.replace("http:", "https:") if told_by == "proxy" else ADDRESS
    with TestClient(app, base_url=address, follow_redirects=False) as client:
        shown = client.get("/login")
        (first,) = shown.headers.get_list("set-cookie")
        token = re.search('name="form_token" value="([0-9a-f]+)"', shown.text)
        assert token is not None
        sent = {"cookie": first.partition(";")[0]}
        form = {"key": key.text, "form_token": token[1]}
        (cookie,) = client.post("/login", data=form, headers=sent).headers.get_list("set-cookie")
        for each in (first, cookie):
            assert each.startswith("__Host-autosync_")
            assert "; Secure" in each
            assert "Domain" not in each
        # a page that came without TLS may have been changed on its way
        mixed = {**sent, "origin": ADDRESS}
        assert client.post("/login", data=form, headers=mixed).status_code == 403
        own = {**sent, "origin": ADDRESS.replace("http:", "https:")}
        assert client.post("/login", data=form, headers=own).status_code == 303


def test_a_form_without_its_token_changes_nothing(client: TestClient, sqlite: Database) -> None:
    """As a page elsewhere would send it, had its browser neither SameSite nor Origin."""
    logged_in(client, make_key(sqlite, "alice", "admin").text)
    form = {"graph": "resnet50", "cluster": "example-4x1"}
    right = given_token(client)
    for wrong in ({}, {"form_token": ""}, {"form_token": "0" * 64}, {"form_token": "ü"}):
        answer = client.post("/tunings", data={**form, **wrong})
        assert answer.status_code == 403
        assert answer.json()["thing"] == "form_token"
    for path in ("/simulators/trainings", "/simulators/0/promote", "/logout"):
        assert client.post(path).status_code == 403
    assert client.post("/v1/simulators/trainings").status_code == 403, "by cookie, REST as well"
    assert client.get("/v1/tunings").json()["total"] == 0
    assert client.get("/v1/simulators/trainings").json()["items"] == []
    foreign = client.post(
        "/tunings", data={**form, **right}, headers={"origin": "http://evil.example"}
    )
    assert foreign.status_code == 403
    assert foreign.json()["thing"] == "Origin"
    assert client.post("/tunings", data={**form, **right}).status_code == 303
    by_header = {"X-Form-Token": right["form_token"]}
    assert client.post("/v1/simulators/trainings", headers=by_header).status_code == 202


def test_a_token_is_of_one_browser_and_one_log_in(client: TestClient, sqlite: Database) -> None:
    before = given_token(client, "/login")
    logged_in(client, make_key(sqlite, "alice", "admin").text)
    mine = given_token(client)
    assert client.post("/simulators/trainings", data=before).status_code == 403
    with TestClient(client.app, base_url=ADDRESS, follow_redirects=False) as other:
        logged_in(other, make_key(sqlite, "mallory", "admin").text)
        theirs = given_token(other)
        assert other.post("/simulators/trainings", data=mine).status_code == 403
    assert client.post("/simulators/trainings", data=theirs).status_code == 403
    assert client.post("/simulators/trainings", data=mine).status_code == 303


def test_a_log_in_that_another_page_sends_is_refused(client: TestClient, sqlite: Database) -> None:
    """Else somebody would work under the attacker's name without knowing."""
    key = make_key(sqlite, "mallory", "tune").text
    assert client.post("/login", data={"key": key}).status_code == 403
    given = given_token(client, "/login")
    foreign = {"origin": "http://evil.example"}
    assert client.post("/login", data={"key": key, **given}, headers=foreign).status_code == 403
    assert SESSION_COOKIE not in client.cookies


def test_a_stolen_cookie_is_worth_nothing_after_the_log_out(
    client: TestClient, sqlite: Database
) -> None:
    logged_in(client, make_key(sqlite, "alice", "admin").text)
    stolen = {"cookie": f"{SESSION_COOKIE}={client.cookies[SESSION_COOKIE]}"}
    with TestClient(client.app, base_url=ADDRESS) as thief:
        assert thief.get("/v1/tunings", headers=stolen).status_code == 200
        out = client.post("/logout", data=given_token(client))
        assert (out.status_code, out.headers["location"]) == (303, "/login")
        assert SESSION_COOKIE not in client.cookies
        assert thief.get("/v1/tunings", headers=stolen).status_code == 401
        form = {"graph": "resnet50", "cluster": "example-4x1", "form_token": "0" * 64}
        assert thief.post("/tunings", data=form, headers=stolen).status_code == 401


def test_a_cookie_from_before_the_log_in_is_none_after_it(
    client: TestClient, sqlite: Database
) -> None:
    """An attacker who sets it beforehand would know it."""
    planted = "p" * 43
    key = make_key(sqlite, "alice", "admin")
    client.cookies.set(SESSION_COOKIE, planted, domain="127.0.0.1", path="/")
    form = {"key": key.text, **given_token(client, "/login")}
    answer = client.post("/login", data=form)
    assert answer.status_code == 303
    assert planted not in answer.headers["set-cookie"]
    client.cookies.clear()
    known = {"cookie": f"{SESSION_COOKIE}={planted}"}
    assert client.get("/v1/tunings", headers=known).status_code == 401


def test_a_second_log_in_ends_the_first_and_a_revoked_key_all(
    client: TestClient, sqlite: Database
) -> None:
    key = make_key(sqlite, "alice", "admin")
    logged_in(client, key.text)
    first = {"cookie": f"{SESSION_COOKIE}={client.cookies[SESSION_COOKIE]}"}
    logged_in(client, key.text)
    assert client.get("/v1/tunings").status_code == 200
    with TestClient(client.app, base_url=ADDRESS) as other:
        assert other.get("/v1/tunings", headers=first).status_code == 401
    revoke_key(sqlite, key.id)
    assert client.get("/v1/tunings").status_code == 401
    again = client.get(
        "/tunings/7/live", headers={"HX-Request": "true", "HX-Current-URL": "http://["}
    )
    assert (again.status_code, again.headers["hx-redirect"]) == (401, "/login?next=/")
    filtered = {"HX-Request": "true", "HX-Current-URL": f"{ADDRESS}/?state=failed&tag=a"}
    led = client.get("/fragments/tunings?state=failed&tag=a", headers=filtered)
    assert led.headers["hx-redirect"] == "/login?next=/%3Fstate%3Dfailed%26tag%3Da"


def test_a_token_of_the_operator_opens_a_session_while_it_holds(sqlite: Database) -> None:
    for token, status in (("alice:open sesame", 200), ("alice:another", 401)):
        app = create_app(sqlite, Access(token))
        with TestClient(app, base_url=ADDRESS, follow_redirects=False) as client:
            if status == 200:
                logged_in(client, "open sesame")
                cookie = {"cookie": f"{SESSION_COOKIE}={client.cookies[SESSION_COOKIE]}"}
            assert client.get("/v1/tunings", headers=cookie).status_code == status


def test_guessed_tokens_are_counted_at_the_log_in(client: TestClient) -> None:
    limiter = client.app.state.authentication.wrong_tokens  # type: ignore[attr-defined]
    limiter.clock = lambda: 0.0  # however long the requests take
    form = given_token(client, "/login")
    guesses = [{**form, "key": f"guess{number}"} for number in range(11)]
    answers = [client.post("/login", data=guess) for guess in guesses]
    assert [answer.status_code for answer in answers] == [401] * 10 + [429]


def test_nobody_is_led_elsewhere() -> None:
    for address in ("//evil.example", "http://evil.example", "/\\evil.example", "", "/a\nb", "a"):
        assert local_address(address) == "/"
    for address in ("/", "/tunings/7?page=2#why", "/a//b"):
        assert local_address(address) == address


def test_an_open_service_asks_for_no_log_in_but_for_tokens_of_forms(sqlite: Database) -> None:
    with TestClient(create_app(sqlite), base_url=ADDRESS, follow_redirects=False) as client:
        led = client.get("/login?next=/models")
        assert (led.status_code, led.headers["location"]) == (303, "/models")
        assert client.post("/simulators/trainings").status_code == 403
        given = given_token(client)
        assert FORM_COOKIE in client.cookies
        assert client.post("/simulators/trainings", data=given).status_code == 303
        assert client.post("/v1/simulators/trainings").status_code == 202


def test_in_a_real_browser(open_context: Callable[[str], BrowserContext], sqlite_url: str) -> None:
    """Logs in, works, comes back by a link from elsewhere, logs out."""
    with opened(sqlite_url) as database:
        key = make_key(database, "alice", "tune").text
    with served(sqlite_url) as service:
        told = httpx.get(
            f"{service.address}/login",
            headers={"X-Forwarded-Proto": "https"},
            timeout=PATIENCE_SECONDS,
        )
        assert "; Secure" in told.headers["set-cookie"], "a proxy on this machine is believed"
        page = open_context(service.address).new_page()
        page.goto(f"{service.address}/models")
        expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
        page.get_by_label("Key").fill(key)
        page.get_by_role("button", name="Log in").click()
        expect(page).to_have_url(f"{service.address}/models")
        assert page.evaluate("document.cookie") == ""
        elsewhere = service.address.replace("127.0.0.1", "localhost")
        page.goto(f"{elsewhere}/static/icon.svg")  # another site, to a browser
        page.evaluate(f"location.href = '{service.address}/clusters'")
        expect(page).to_have_url(f"{service.address}/clusters")
        expect(page.get_by_role("heading", level=1)).to_have_text("Clusters")
        page.get_by_role("button", name="Log out").click()
        expect(page).to_have_url(f"{service.address}/login")
        page.goto(f"{service.address}/clusters")
        expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
        page.context.close()
