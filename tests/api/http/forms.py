"""What tests read of a page: the token of its forms, and what its charts have drawn."""

import re
from typing import Any

from fastapi.testclient import TestClient
from playwright.sync_api import Locator, Page

from autosync.api.http.access.browser import FORM_FIELD


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


PLOTS = """canvases => canvases.map((canvas) => {
  const chart = Chart.getChart(canvas);
  return chart && {
    points: Object.fromEntries(chart.data.datasets.map((each) => [each.label, each.data.length])),
    rules: chart.options.plugins.rules.lines.map((each) => each.name),
    axis: chart.options.scales.x.title.text,
    drawn: canvas.toDataURL().length > 1500,
  };
})"""


def plots(figure: Locator) -> list[dict[str, Any]]:
    """Of each plot of a chart that is visible: its points by series, the names of its rules, the
    title of its horizontal axis, and whether anything is on the canvas."""
    for _ in range(2400):  # a figure that comes anew is drawn a moment later
        figure.locator("canvas").first.wait_for(state="visible")
        found: list[dict[str, Any]] = figure.locator("canvas").evaluate_all(PLOTS)
        if found and all(each and each["drawn"] for each in found):
            return found
        figure.page.wait_for_timeout(100)
    raise AssertionError(f"not drawn: {found}")
