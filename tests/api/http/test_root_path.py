"""The service behind a proxy that shows it below a path: links, redirects, cookies, events, and the
client."""

import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser

import httpx
import pytest
from playwright.sync_api import BrowserContext, expect

from autosync.api.client.rest_client import Client
from autosync.api.engine import job_queue
from autosync.api.http.root_path import checked_root_path
from autosync.errors import InvalidInput
from autosync.search.loop.outcome import TuningEvent
from tests.api.databases import opened
from tests.api.http.reverse_proxy import proxied
from tests.api.http.serving import PATIENCE_SECONDS, served
from tests.api.sample import claimed, finished, small_request

PREFIX, TOKEN = "/tools/autosync", "a-long-random-text"
PAGES = (
    *("/", "/docs", "/models", "/models/resnet50"),
    *("/clusters", "/clusters/example-4x1", "/simulators"),
)
OF_A_TUNING = ("", "/trials", "/ranked", "/live")


@pytest.fixture(scope="module")
def tuning_id(module_url: str) -> str:
    with opened(module_url) as database:
        return finished(database)


@pytest.fixture(scope="module")
def address(module_url: str, tuning_id: str) -> Iterator[str]:
    with (
        served(module_url, TOKEN, root_path=PREFIX) as service,
        proxied(service.address, PREFIX) as shown,
    ):
        yield shown


class Addresses(HTMLParser):
    """What a page's links, forms, scripts and fragments lead to."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if (name in ("href", "src", "action") or name.startswith("hx-get")) and value:
                self.found.append(value)


@pytest.fixture
def logged_in(address: str) -> Iterator[httpx.Client]:
    """One that has logged in by the form."""
    with httpx.Client(base_url=address, follow_redirects=False, timeout=PATIENCE_SECONDS) as client:
        client.headers["Accept"] = "text/html"
        led = client.get("/tunings/x?y=1")
        assert led.status_code == 303
        assert led.headers["location"].startswith(f"{PREFIX}/login?next=")
        form = client.get(led.headers["location"].removeprefix(PREFIX))
        (token,) = set(re.findall(r'name="form_token" value="([0-9a-f]+)"', form.text))
        (next_page,) = re.findall(r'name="next" value="([^"]*)"', form.text)
        sent = {"form_token": token, "key": TOKEN, "next": next_page}
        entered = client.post("/login", data=sent)
        assert entered.headers["location"] == f"{PREFIX}/tunings/x?y=1"
        yield client


def test_all_addresses_of_pages_are_below_the_path(
    logged_in: httpx.Client, tuning_id: str, address: str
) -> None:
    paths = [*PAGES, *(f"/tunings/{tuning_id}{each}" for each in OF_A_TUNING)]
    seen: set[str] = set()
    for path in paths:
        page = logged_in.get(path)
        assert page.is_success, path
        for found in Addresses(page.text).found:
            if not found.startswith(("#", "?", "https://")):
                assert found.startswith(f"{PREFIX}/"), (path, found)
                seen.add(found.partition("#")[0])
    static = {each for each in seen if "/static/" in each}
    assert static
    for found in static:
        assert httpx.get(
            address.removesuffix(PREFIX) + found, timeout=PATIENCE_SECONDS
        ).is_success, found


def test_cookies_are_of_the_path(logged_in: httpx.Client) -> None:
    assert {cookie.path for cookie in logged_in.cookies.jar} == {PREFIX}
    assert logged_in.get("/").is_success


def test_a_form_leads_below_the_path(logged_in: httpx.Client, tuning_id: str) -> None:
    page = logged_in.get(f"/tunings/{tuning_id}")
    (token,) = set(re.findall(r'name="form_token" value="([0-9a-f]+)"', page.text))
    sent = {"form_token": token, "archived": "false"}
    answer = logged_in.post(f"/tunings/{tuning_id}/archive", data=sent)
    assert answer.headers["location"] == f"{PREFIX}/tunings/{tuning_id}"


def test_the_client_and_events_work_below_the_path(address: str, tuning_id: str) -> None:
    with Client(address, TOKEN) as client:
        assert client.tunings.get(tuning_id).state == "finished"
        assert list(client.tunings.events(tuning_id))[-1].state == "finished"
        stored = client.clusters.post(client.clusters.get(client.tunings.get(tuning_id).cluster_id))
        assert stored.location == f"{PREFIX}/v1/clusters/{stored.id}"
    documented = httpx.get(
        f"{address}/openapi.json",
        headers={"Authorization": f"Bearer {TOKEN}"},
        timeout=PATIENCE_SECONDS,
    )
    assert documented.json()["servers"] == [{"url": PREFIX}]
    assert documented.json()["openapi"].startswith("3.1")


def test_a_proxy_that_leaves_the_path_on_is_understood(module_url: str, tuning_id: str) -> None:
    with served(module_url, root_path=PREFIX) as service:
        for begin in ("", PREFIX):
            page = httpx.get(
                f"{service.address}{begin}/tunings/{tuning_id}", timeout=PATIENCE_SECONDS
            )
            assert page.is_success
            assert f'href="{PREFIX}/models"' in page.text


@pytest.mark.parametrize("text", ["autosync", "/a//b", "/..", "/a b", '/"x', "//elsewhere"])
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="no path below which"):
        checked_root_path(text)


@pytest.mark.parametrize("text", ["/v1", "/tunings", "/models/", "/v1/tunings", "/static"])
def test_a_path_of_the_service_itself_is_refused(text: str) -> None:
    """What a proxy has taken it off already would be taken for what it has not."""
    with pytest.raises(InvalidInput, match="a path of the service itself"):
        checked_root_path(text)


def test_a_slash_at_the_end_is_left_out() -> None:
    given = ("", "/", "/a/b/", "/models/autosync")
    assert [checked_root_path(each) for each in given] == ["", "", "/a/b", "/models/autosync"]


def test_a_browser_follows_events_and_uses_the_documentation_below_the_path(
    open_context: Callable[[str], BrowserContext], address: str, module_url: str
) -> None:
    """Logged in; the documentation needs no other host, and nothing that the policy refuses."""
    with opened(module_url) as database:
        held, store = claimed(database, small_request())
        page = open_context(address).new_page()
        page.goto(f"{address}/tunings/{held.job_id}")
        page.get_by_label("Key").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("#live")).to_contain_text("running")
        store.report(TuningEvent("search", "news below the path", 1, 2))
        expect(page.locator("#live")).to_contain_text("news below the path")
        job_queue.fail(database, held, "no more")
        expect(page.locator("#live")).to_contain_text("The tuning failed")
    complaints: list[str] = []
    asked: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{address}/docs")
    expect(page.locator(".swagger-ui .info")).to_contain_text("AutoSync")
    page.locator("#operations-predictions-post_rank_v1_rank_post .opblock-summary").click()
    page.get_by_role("button", name="Try it out").click()
    page.locator(".body-param textarea").fill('{"graph": "nobody", "cluster": "nobody"}')
    assert complaints == []
    page.get_by_role("button", name="Execute").click()
    answered = page.locator(".live-responses-table .response-col_status").last
    expect(answered).to_contain_text("404")  # past the scope and the token
    assert all(each.startswith((address, "data:", "blob:")) for each in asked)
