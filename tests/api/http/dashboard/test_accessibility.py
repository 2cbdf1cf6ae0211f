"""Every page by keyboard, by voice, on a phone and in the dark: checked in a real browser. That of
predictions fills in part by part, whatever becomes of each."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import BrowserContext, Page, Route, ViewportSize, expect

from autosync.api.db import Database
from autosync.api.db.document_store import LONGEST_NAME
from autosync.api.engine import job_queue
from autosync.api.engine.submission import enqueue
from autosync.api.views import reports
from tests.api.http.serving import Service
from tests.api.sample import claimed, finished, run_search, small_request
from tests.api.simulator_versions import store_versions
from tests.domains import chain_graph, domain_of, grid_cluster

pytestmark = pytest.mark.timeout(600)

CHECK = (Path(__file__).parent / "accessibility.js").read_text()
OPEN_ALL = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
LARGE: ViewportSize = {"width": 1200, "height": 900}
SMALL: ViewportSize = {"width": 380, "height": 800}
LOOKS: tuple[tuple[ViewportSize, Literal["light", "dark"]], ...] = (
    (LARGE, "light"),
    (SMALL, "dark"),
)
"""Colours do not depend on the screen, nor widths on colours."""
REQUEST = small_request(budget=8)
ASKED = "/predict/answer?graph=vgg16&cluster=example-mixed&nodes=9"


def pages(database: Database) -> dict[str, str]:
    """Each kind of page, and what is shown there at last."""
    done, other = finished(database, REQUEST), finished(database, REQUEST)
    held, store = claimed(database, REQUEST)
    run_search(store, REQUEST)
    model = replace(chain_graph(), name="m" * LONGEST_NAME)
    cluster = replace(grid_cluster(), name="c" * LONGEST_NAME)
    waiting = enqueue(database, replace(REQUEST, domain=domain_of(model, cluster)))
    job_queue.cancel(database, enqueue(database, REQUEST))
    store_versions(database)
    with database.reading() as session:
        tuning = reports.tuning(session, done)
        ranked = reports.ranked_strategies(session, done).items
    assert tuning.result is not None
    answer, second = tuning.result.strategy_id, ranked[1].strategy_id
    of = f"/tunings/{done}"
    return {
        "/": "table.tunings",
        "/?text=nobody": ".empty",
        "/models": "table",
        "/models/vgg16": "figure#model",
        "/clusters": "table",
        f"/clusters/{tuning.cluster_id}": "table#nodes",
        "/simulators": "figure#versions",
        "/simulators/version-0": "table#sources",
        "/simulators/version-2": "figure#versions",
        of: "figure#memory",
        f"/tunings/{held.job_id}": "figure#convergence",
        f"/tunings/{waiting}": "#state",
        f"{of}/trials": "table.trials",
        f"{of}/trials/7": ".stderr",
        f"{of}/strategies/{answer}": "figure#predicted-timeline",
        f"{of}/compare?left={answer}&right={second}": "figure#predicted-timeline",
        f"/compare?tuning={done}&tuning={other}&tuning={held.job_id}": ".facts-table",
        f"/?like={done}": "#start form",
        "/runtimes": "table.runtimes",
        "/predict": "form#ask",
        "/predict/answer?graph=vgg16&cluster=aws-p3-16xlarge-x4": "figure#collectives",
        "/glossary": "dl.glossary",
    }


def test_every_page_can_be_read_and_used_by_everyone(page: Page, shown_database: Database) -> None:
    wrong = []
    for path, last in pages(shown_database).items():
        page.set_viewport_size(LARGE)
        page.goto(path)
        expect(page.locator(last).first).to_be_visible()
        expect(page.get_by_text(re.compile("being (drawn|made|predicted)"))).to_have_count(0)
        page.evaluate(OPEN_ALL)
        for screen, scheme in LOOKS:
            page.set_viewport_size(screen)
            page.emulate_media(color_scheme=scheme)
            found = page.evaluate(CHECK)
            wrong += [f"{path}, {screen['width']} pixels, {scheme}: {each}" for each in found]
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert max(int(part) for part in re.findall(r"\d+", ground)) < 60, "dark is dark"
    assert not wrong, "\n".join(wrong)


def test_parts_fill_in_and_say_why_where_they_cannot(
    open_context: Callable[[str], BrowserContext], service: Service
) -> None:
    page = open_context(service.address).new_page()
    asked: list[str] = []

    def busy_at_first(route: Route) -> None:
        """As where another prediction of the same client is under way, and then behind a proxy
        whose service starts anew, in a status of its own."""
        asked.append(route.request.url)
        if len(asked) == 1:
            return route.fulfill(status=429, headers={"Retry-After": "1"}, body="{}")
        if len(asked) == 2:
            return route.fulfill(status=520, content_type="text/html", body="<h1>No answer</h1>")
        route.continue_()

    page.route("**/predict/collectives?*", busy_at_first)
    page.goto(ASKED)
    expect(page.locator("#predicted > section")).to_have_count(3)
    expect(page.locator("#predicted-scale [role=alert]")).to_contain_text("its nodes differ")
    expect(page.locator("#strategies tr.ddp")).to_be_visible()
    expect(page.locator("figure#collectives")).to_be_visible()
    assert len(asked) == 3
    expect(page.locator(".pending")).to_have_count(0)
