"""Many tabs of one browser on tunings that run: all load and hear of news by one connection."""

from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import BrowserContext, Page, expect

from autosync.api.db import Database
from autosync.api.engine import job_queue
from autosync.search.loop.outcome import TuningEvent
from tests.api.http.serving import PATIENCE_SECONDS, Service
from tests.api.sample import claimed, small_request

TABS = 7
"""More than the six connections that a browser keeps to a host."""


@pytest.fixture
def context(open_context: Callable[[str], BrowserContext], service: Service) -> BrowserContext:
    return open_context(service.address)


def listeners(service: Service) -> int:
    lines = httpx.get(f"{service.address}/metrics", timeout=PATIENCE_SECONDS).text.splitlines()
    (line,) = [each for each in lines if each.startswith("autosync_listeners ")]
    return int(line.split()[1])


def says(page: Page, words: str) -> None:
    expect(page.locator("#live")).to_contain_text(words)


def test_one_connection_serves_all_tabs_of_a_browser(
    context: BrowserContext, service: Service, shown_database: Database
) -> None:
    held, store = claimed(shown_database, small_request())
    tabs = [context.new_page() for _ in range(TABS)]
    for tab in tabs:
        tab.goto(f"/tunings/{held.job_id}")
        says(tab, "running")
    store.report(TuningEvent("search", "news for every tab", 1, 2))
    for tab in tabs:
        tab.bring_to_front()
        says(tab, "news for every tab")
    assert listeners(service) == 1
    tabs[0].close()  # the one that listened
    store.report(TuningEvent("search", "after the first has gone", 2, 2))
    for tab in tabs[1:]:
        tab.bring_to_front()
        says(tab, "after the first has gone")
    while listeners(service) > 1:  # the service learns a moment later that the first has gone
        tabs[1].wait_for_timeout(100)
    job_queue.fail(shown_database, held, "no more")
    for tab in tabs[1:]:
        tab.bring_to_front()
        says(tab, "The tuning failed")


def test_tabs_ask_where_a_browser_has_no_locks(
    context: BrowserContext, service: Service, shown_database: Database
) -> None:
    held, store = claimed(shown_database, small_request())
    context.add_init_script("Object.defineProperty(navigator, 'locks', {value: undefined})")
    tab = context.new_page()
    tab.goto(f"/tunings/{held.job_id}")
    says(tab, "running")
    store.report(TuningEvent("search", "heard", 1, 2))
    says(tab, "heard")
    assert listeners(service) == 0
    job_queue.fail(shown_database, held, "no more")
    says(tab, "The tuning failed")
