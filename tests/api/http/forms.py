"""The token that a page gives its forms, for tests that send one without the page."""

import re

from fastapi.testclient import TestClient
from playwright.sync_api import Page

from autosync.api.http.access.browser_cookies import FORM_FIELD


def given_token(client: TestClient, path: str = "/simulators") -> dict[str, str]:
    """The field as a page has it; the client keeps the cookie."""
    shown = client.get(path, headers={"accept": "text/html"}).text
    found = re.search(f'name="{FORM_FIELD}" value="([0-9a-f]{{64}})"', shown)
    assert found is not None, shown
    return {FORM_FIELD: found[1]}


def shown_token(page: Page) -> dict[str, str | float | bool]:
    """The field of a page that a browser shows."""
    value = page.locator(f"input[name={FORM_FIELD}]").first.get_attribute("value")
    return {FORM_FIELD: value or ""}
