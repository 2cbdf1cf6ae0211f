"""A real browser on the real service for tests of the dashboard."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Page,
    ViewportSize,
    expect,
    sync_playwright,
)

from autosync.api.db import Database
from tests.api.databases import opened
from tests.api.http.serving import Service, served

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PATIENCE_MILLISECONDS = 240_000
"""How long any wait for a page may take, navigation included: other load may slow a page down."""
USUAL_WINDOW: ViewportSize = {"width": 1280, "height": 720}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not Path(CHROMIUM).exists():
        pytest.skip(
            f"THE DASHBOARD IS NOT TESTED: no {CHROMIUM}; install chromium, or set CHROMIUM"
        )
    expect.set_options(timeout=PATIENCE_MILLISECONDS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def open_context(browser: Browser) -> Iterator[Callable[[str], BrowserContext]]:
    """Opens a context whose addresses are relative to the one given. All are closed at the end."""
    contexts: list[BrowserContext] = []

    def make(base_url: str) -> BrowserContext:
        context = browser.new_context(base_url=base_url, accept_downloads=True)
        context.set_default_timeout(PATIENCE_MILLISECONDS)
        contexts.append(context)
        return context

    yield make
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def service(module_url: str) -> Iterator[Service]:
    with served(module_url) as service:
        yield service


@pytest.fixture
def shown_database(module_url: str) -> Iterator[Database]:
    """What the service shows."""
    with opened(module_url) as database:
        yield database


@pytest.fixture(scope="module")
def shared_page(browser: Browser, service: Service) -> Iterator[tuple[Page, list[str]]]:
    """A new one takes the browser a second; with what it complains of."""
    complaints: list[str] = []
    page = browser.new_context(base_url=service.address, accept_downloads=True).new_page()
    page.context.set_default_timeout(PATIENCE_MILLISECONDS)
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
    yield page, complaints
    page.context.close()


@pytest.fixture
def page(shared_page: tuple[Page, list[str]]) -> Iterator[Page]:
    """A page in which every complaint of the browser and every foreign request is an error. Its
    window has the usual size, and it shows nothing yet."""
    page, complaints = shared_page
    page.set_viewport_size(USUAL_WINDOW)
    yield page
    page.goto("about:blank")
    page.context.clear_cookies()
    found, complaints[:] = complaints[:], []
    assert found == []
