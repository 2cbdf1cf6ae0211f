"""The page of predictions in a real browser: it fills in part by part, whatever becomes of each."""

from playwright.sync_api import Browser, Route, expect

from tests.api.http.serving import Service

PATIENCE_MILLISECONDS = 240_000
ASKED = "/predict/answer?graph=vgg16&cluster=example-mixed&nodes=9"


def test_parts_fill_in_and_say_why_where_they_cannot(browser: Browser, service: Service) -> None:
    context = browser.new_context(base_url=service.address)
    context.set_default_timeout(PATIENCE_MILLISECONDS)
    page = context.new_page()
    asked: list[str] = []

    def busy_at_first(route: Route) -> None:
        """As where another prediction of the same client is under way."""
        asked.append(route.request.url)
        if len(asked) == 1:
            return route.fulfill(status=429, headers={"Retry-After": "1"}, body="{}")
        route.continue_()

    page.route("**/predict/collectives?*", busy_at_first)
    page.goto(ASKED)
    expect(page.locator("#predicted > section")).to_have_count(3)
    expect(page.locator("#predicted-scale [role=alert]")).to_contain_text(
        "its nodes differ", timeout=PATIENCE_MILLISECONDS
    )
    expect(page.locator("#strategies tr.ddp")).to_be_visible()
    expect(page.locator("figure#collectives")).to_be_visible(timeout=PATIENCE_MILLISECONDS)
    assert len(asked) == 2
    expect(page.locator(".pending")).to_have_count(0)
    context.close()
