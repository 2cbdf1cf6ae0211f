"""The dashboard in a real browser: nothing from elsewhere, nothing blocked, live and usable."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from sqlalchemy import text

from autosync.api.db import Database
from autosync.api.engine import tuning_queue
from autosync.api.views import reports
from autosync.bundle import load_bundle
from tests.api.databases import opened
from tests.api.http.serving import Service, served
from tests.api.sample import (
    claimed,
    finished,
    run_confirmation,
    run_search,
    small_request,
    waiting,
)

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
REQUEST = small_request(budget=8)
pytestmark = pytest.mark.skipif(
    not Path(CHROMIUM).exists(),
    reason=f"THE DASHBOARD IS NOT TESTED: no {CHROMIUM}; install chromium, or set CHROMIUM",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def url(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("dashboard") / "test.db"
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(scope="module")
def service(url: str) -> Iterator[Service]:
    with served(url) as service:
        yield service


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    with opened(url) as database:
        yield database


@pytest.fixture
def page(browser: Browser, service: Service) -> Iterator[Page]:
    """A page in which every complaint of the browser and every foreign request is an error."""
    complaints: list[str] = []
    context = browser.new_context(base_url=service.address, accept_downloads=True)
    page = context.new_page()
    page.on("console", lambda m: complaints.append(m.text) if m.type != "log" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((service.address, "data:", "blob:"))
            else complaints.append(request.url)
        ),
    )
    yield page
    context.close()
    assert complaints == []


def test_a_new_user_starts_a_tuning(page: Page, database: Database) -> None:
    with database.writing() as session:
        for table in ("events", "trials", "outcomes", "proposals", "tunings"):
            session.execute(text(f"delete from {table}"))
    page.goto("/")
    expect(page.get_by_text("No tunings yet")).to_be_visible()
    page.locator("select[name=graph]").select_option("vgg16")
    page.locator("select[name=cluster]").select_option("example-2x2")
    page.get_by_label("Budget").fill("7")
    page.get_by_role("button", name="Start").click()
    expect(page).to_have_url(re.compile("/tunings/[0-9a-f]{32}$"))
    expect(page.get_by_role("heading", level=1)).to_have_text("vgg16 on example-2x2")
    expect(page.get_by_text("waits for a worker")).to_be_visible()
    expect(page.get_by_text("Nothing to rank yet")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#state")).to_have_text("cancelled")
    page.goto("/")
    expect(page.locator("table.tunings")).to_contain_text("vgg16")


def test_mistakes_are_explained_on_a_page(page: Page) -> None:
    form: dict[str, str | float | bool] = {"graph": "resnet50", "cluster": "example-4x1"}
    form["time_scale"] = "5000"
    answer = page.request.post("/tunings", form=form)
    assert answer.status == 422
    assert "time_scale: Input should be less than or equal to 1000" in answer.text()
    unknown = page.request.get(f"/tunings/{'0' * 32}", headers={"accept": "text/html"})
    assert unknown.status == 404
    assert "All tunings" in unknown.text()
    assert "GET /v1" not in unknown.text(), "a reader of pages has the button"


def test_a_finished_tuning_shows_its_answer(page: Page, database: Database, tmp_path: Path) -> None:
    tuning_id = finished(database, REQUEST)
    page.goto(f"/tunings/{tuning_id}")
    tiles = page.locator(".tile")
    expect(tiles.filter(has_text="Confirmed speed-up")).to_contain_text("×")
    rows = page.locator("table.ranked tbody tr")
    expect(rows).to_have_count(8)
    expect(rows.first).to_contain_text("the answer")
    expect(rows.first).to_contain_text("ms")
    expect(rows.last).to_contain_text("no answer within 120 s")
    expect(page.locator("#two-lines")).to_contain_text('distribute(model, optimizer, "best.json")')
    for chart in ("#convergence", "#accuracy"):
        expect(page.locator(f"{chart} canvas")).to_be_visible()
        assert painted(page, chart) > 500
    expect(page.locator("#timeline canvas")).to_be_visible()
    assert painted(page, "#timeline") > 10_000
    expect(page.locator("#differences tbody tr").first).to_contain_text("ms")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download best.json").click()
    assert download.value.suggested_filename == "best.json"
    download.value.save_as(tmp_path / "best.json")
    assert load_bundle(tmp_path / "best.json").domain_id == REQUEST.domain.id


def painted(page: Page, chart: str) -> int:
    """Pixels of the chart's canvas that are not transparent."""
    count = page.evaluate(
        """(selector) => {
          const canvas = document.querySelector(selector + " canvas");
          const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          return data.filter((value, i) => i % 4 === 3 && value > 0).length;
        }""",
        chart,
    )
    return int(count)


def test_the_timeline_of_any_strategy(page: Page, database: Database, tmp_path: Path) -> None:
    tuning_id = finished(database, REQUEST)
    page.goto(f"/tunings/{tuning_id}")
    choice, note = page.locator("#timeline-of"), page.locator("#timeline-note")
    expect(choice.locator("option")).to_have_count(8)
    with database.reading() as session:
        rows = reports.ranked_strategies(session, tuning_id).items
        answer = reports.tuning(session, tuning_id).result
    assert answer is not None
    expect(choice).to_have_value(answer.strategy_id)
    expect(page.locator("#differences")).to_be_visible()
    both = page.locator("#timeline").bounding_box()
    with page.expect_download() as download:
        page.get_by_role("link", name="Chrome trace").click()
    download.value.save_as(tmp_path / "trace.json")
    assert "measured: rank 0" in (tmp_path / "trace.json").read_text()
    choice.select_option(next(row.strategy_id for row in rows if not row.recorded))
    expect(note).to_contain_text("No trial of this strategy recorded")
    expect(page.locator("#differences")).to_be_hidden()
    alone = page.locator("#timeline").bounding_box()
    assert both is not None
    assert alone is not None
    assert alone["height"] < both["height"]
    choice.select_option(next(row.strategy_id for row in rows if row.is_ddp))
    expect(note).to_have_text("")
    expect(page.locator("#differences")).to_be_hidden()


def test_a_running_tuning_comes_in_live(page: Page, database: Database) -> None:
    held, store = claimed(database, REQUEST)
    page.goto(f"/tunings/{held.tuning_id}")
    expect(page.locator("#state")).to_have_text("running")
    expect(page.get_by_text("The first trial has not finished yet.")).to_be_visible()
    run_search(store, REQUEST)
    expect(page.get_by_text("search 8/8")).to_be_visible()
    expect(page.locator("table.ranked tbody tr")).to_have_count(8)
    expect(page.locator("#convergence canvas")).to_be_visible()
    run_confirmation(database, store, held, REQUEST)
    expect(page.locator("#state")).to_have_text("finished")
    expect(page.get_by_role("link", name="Download best.json")).to_be_visible()


def test_a_tuning_that_waits_for_another_measurement_says_so(
    page: Page, database: Database
) -> None:
    held, store = claimed(database, REQUEST)
    run_search(store, REQUEST)
    page.goto(f"/tunings/{held.tuning_id}")
    expect(page.get_by_role("status")).to_contain_text("search 8/8")
    expect(page.get_by_role("status")).to_contain_text(re.compile(r"about \d+ s left"))
    store.report(waiting("another measurement runs on this machine"))
    expect(page.get_by_role("status")).to_contain_text("another measurement runs on this machine")
    expect(page.get_by_role("status")).to_contain_text("search 8/8")
    tuning_queue.end_cancelled(database, held)


def test_unshaped_links_and_estimates_are_said_beside_the_headline(
    page: Page, database: Database
) -> None:
    held, store = claimed(database, replace(REQUEST, launcher="auto"))
    page.goto(f"/tunings/{held.tuning_id}")
    badges = page.locator(".heading .tag.caveat")
    expect(badges).to_have_text(["compute estimated"])
    run_search(store, REQUEST, launcher="local (unshaped links)")
    expect(badges).to_have_text(["links not shaped", "compute estimated"])
    expect(page.locator(".heading")).to_contain_text("do not stand for the cluster")
    expect(page.locator(".heading")).to_contain_text("trials on local (unshaped links)")
    page.goto("/")
    row = page.locator("table.tunings tbody tr").filter(
        has=page.locator(f"a[href$='{held.tuning_id}']")
    )
    expect(row.locator(".tag.caveat")).to_have_text(["links not shaped", "compute estimated"])
    tuning_queue.end_cancelled(database, held)


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_overflows_and_the_dark_scheme_is_dark(
    browser: Browser, service: Service, database: Database, width: int
) -> None:
    tuning_id = finished(database, REQUEST)
    context = browser.new_context(
        base_url=service.address,
        color_scheme="dark",
        viewport={"width": width, "height": 700},
    )
    page = context.new_page()
    for path in ("/", "/simulators", f"/tunings/{tuning_id}"):
        page.goto(path)
        page.wait_for_load_state()
        if path.startswith("/tunings"):
            expect(page.locator("#differences")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert max(int(part) for part in re.findall(r"\d+", ground)) < 60
    context.close()


def test_the_api_documentation_needs_no_other_host(page: Page, service: Service) -> None:
    page.goto("/docs")
    expect(page.locator(".swagger-ui .info h1, .swagger-ui .info h2").first).to_contain_text(
        "AutoSync", timeout=30_000
    )
    page.locator("#operations-service-get_health_v1_health_get .opblock-summary").click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    expect(page.locator(".responses-table.live-responses-table")).to_contain_text('"status": "ok"')
    assert json.loads(page.request.get("/openapi.json").text())["openapi"].startswith("3.1")
