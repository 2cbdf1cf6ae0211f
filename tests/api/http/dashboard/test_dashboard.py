"""The dashboard in a real browser: nothing from elsewhere, nothing blocked, live and usable."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import text

from autosync.api.db import Database
from autosync.api.engine import job_queue
from autosync.api.views import reports
from autosync.bundle import load_bundle
from tests.api.databases import opened
from tests.api.http.forms import plots, shown_token
from tests.api.sample import (
    claimed,
    finished,
    finished_without_ddp,
    run_confirmation,
    run_search,
    small_request,
    waiting,
)

REQUEST = small_request(budget=8)


@pytest.fixture(scope="module")
def done(module_url: str) -> str:
    """The id of a finished tuning."""
    with opened(module_url) as database:
        return finished(database, REQUEST)


def test_a_new_user_starts_a_tuning(page: Page, shown_database: Database) -> None:
    with shown_database.writing() as session:
        for table in ("events", "trials", "outcomes", "proposals", "jobs"):
            session.execute(text(f"delete from {table}"))
    page.goto("/")
    expect(page.get_by_text("No tunings yet")).to_be_visible()
    page.locator("select[name=graph]").select_option("vgg16")
    page.locator("select[name=cluster]").select_option("example-2x2")
    page.get_by_label("Budget").fill("7")
    page.get_by_role("button", name="Start").click()
    expect(page).to_have_url(re.compile("/tunings/[0-9a-f]{32}$"))
    expect(page.get_by_role("heading", level=1)).to_have_text(
        "vgg16 on example-2x2 waits for a worker, place 1 in the queue"
    )
    expect(page.get_by_text("Nothing to rank yet")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#state")).to_have_text("cancelled")
    page.goto("/")
    expect(page.locator("table.tunings")).to_contain_text("vgg16")


def test_mistakes_are_explained_on_a_page(page: Page) -> None:
    form: dict[str, str | float | bool] = {"graph": "resnet50", "cluster": "example-4x1"}
    form["time_scale"] = "5000"
    page.goto("/")
    answer = page.request.post("/tunings", form={**form, **shown_token(page)})
    assert answer.status == 422
    assert "time_scale: Input should be less than or equal to 1000" in answer.text()
    unknown = page.request.get(f"/tunings/{'0' * 32}", headers={"accept": "text/html"})
    assert unknown.status == 404
    assert "All tunings" in unknown.text()
    assert "GET /v1" not in unknown.text(), "a reader of pages has the button"


def test_a_finished_tuning_shows_its_answer(page: Page, done: str, tmp_path: Path) -> None:
    page.goto(f"/tunings/{done}")
    headline = page.get_by_role("heading", level=1)
    expect(headline).to_have_text(
        re.compile(r"^chain on grid trains \d\.\d\d times as fast as under torch's DDP$")
    )
    expect(page.locator(".certainty")).to_contain_text(
        "percentiles 10 and 90 of 2 interleaved repeats"
    )
    expect(page.locator(".heading")).to_contain_text(
        "Measured on testbed (4 nodes), 1/2 of the bytes"
    )
    expect(page.locator(".apply .chip").first).to_be_visible()
    expect(page.locator("table.ranked .chip.differs").first).to_be_visible()
    tiles = page.locator(".tile")
    expect(tiles.filter(has_text="Confirmed speed-up")).to_contain_text("×")
    rows = page.locator("table.ranked tbody tr")
    expect(rows).to_have_count(8)
    expect(rows.first).to_contain_text("the answer")
    expect(rows.last).to_contain_text("no answer within 120 s")
    expect(page.locator("#two-lines")).to_contain_text('distribute(model, optimizer, "best.json")')
    with page.expect_download() as download:
        page.get_by_role("link", name="Download best.json").click()
    assert download.value.suggested_filename == "best.json"
    download.value.save_as(tmp_path / "best.json")
    assert load_bundle(tmp_path / "best.json").domain_id == REQUEST.domain.id


def test_where_there_is_no_clipboard_the_two_lines_are_selected(page: Page, done: str) -> None:
    """As on plain HTTP from another machine."""
    page.goto(f"/tunings/{done}")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.get_by_role("button", name="Copy").click()
    expect(page.locator(".copy")).to_have_text("Selected")
    assert "autosync.distribute(" in page.evaluate("getSelection().toString()")


CHARTS = {"convergence", "accuracy", "confirmation", "rounds", "choices"}
REASONS = {"timeline", "predicted-timeline", "nics", "memory"}


def test_every_chart_is_drawn_and_has_a_table_that_keys_open(page: Page, done: str) -> None:
    page.goto(f"/tunings/{done}")
    expect(page.locator("#charts figure")).to_have_count(len(CHARTS))
    expect(page.locator("#why figure")).to_have_count(len(REASONS))
    for name in CHARTS | REASONS:
        figure = page.locator(f"figure#{name}")
        picture = figure.get_by_role("img").first
        expect(picture).to_be_visible()
        assert len(picture.get_attribute("aria-label") or "") > 10
        box = picture.bounding_box()
        assert box is not None
        assert box["width"] > 200
        assert all(sum(plot["points"].values()) for plot in plots(figure))
        figure.locator("summary").focus()
        page.keyboard.press("Enter")
        expect(figure.locator("tbody tr").first).to_be_visible()
    for name in CHARTS - {"rounds", "choices"}:
        assert plots(page.locator(f"figure#{name}"))[0]["rules"].count("limit") == 1
    assert [plot["rules"] for plot in plots(page.locator("figure#timeline"))] == [["", "limit"]] * 2


def test_the_confirmation_shows_what_it_was_compared_with(
    page: Page, shown_database: Database
) -> None:
    tuning_id = finished_without_ddp(shown_database, REQUEST)
    with shown_database.reading() as session:
        answer = reports.tuning(session, tuning_id).result
    assert answer is not None
    page.goto(f"/tunings/{tuning_id}")
    figure = page.locator("figure#confirmation")
    (plot,) = plots(figure)
    assert plot["rules"][0] == answer.baseline
    assert plot["axis"] == f"times as fast as {answer.baseline}"
    expect(figure).to_contain_text(
        f"Compared with {answer.baseline}: torch's DDP ran out of memory."
    )
    tiles = page.locator(".tile")
    expect(tiles.filter(has_text="torch's DDP")).to_contain_text("ran out of memory")
    gained = tiles.filter(has_text="Confirmed speed-up")
    expect(gained).to_contain_text("none" if answer.keeps_baseline else "×")
    expect(gained).to_contain_text(answer.baseline)


def test_why_the_answer_is_faster_than_ddp(page: Page, shown_database: Database, done: str) -> None:
    with shown_database.reading() as session:
        rows = reports.ranked_strategies(session, done).items
        answer = reports.tuning(session, done).result
    assert answer is not None
    page.goto(f"/tunings/{done}")
    choice = page.locator("#strategy-shown")
    expect(choice).to_have_value(answer.strategy_id)
    facts = page.locator("#why .facts-table")
    expect(facts.locator("thead")).to_contain_text("DDP")
    expect(facts.locator("tr.differs").filter(has_text="Measured")).to_contain_text("ms")
    panels = page.locator("figure#timeline .plot-title")
    expect(panels).to_have_count(2)
    expect(panels.last).to_contain_text("DDP, measured")
    expect(page.locator("figure#timeline")).to_contain_text("torch's DDP does not say")
    choice.select_option(next(row.strategy_id for row in rows if not row.recorded))
    expect(page.locator("#why h2")).to_contain_text("beside DDP")
    expect(page.locator("figure#predicted-timeline")).to_contain_text("recorded its timeline")
    expect(page.locator("figure#timeline .plot-title")).to_have_count(1)
    choice.select_option(next(row.strategy_id for row in rows if row.is_ddp))
    expect(page.locator("#why h2")).to_have_text("Where the time goes: DDP")


def test_a_strategy_and_a_trial_that_failed_have_pages(page: Page, done: str) -> None:
    page.goto(f"/tunings/{done}")
    page.locator("table.ranked tbody tr").last.locator("a.strategy").click()
    expect(page.locator(".refusal")).to_have_text("timeout: no answer within 120 s")
    expect(page.locator("figure#predicted-timeline")).to_be_visible()
    page.locator("table.trials a").first.click()
    expect(page.get_by_role("alert")).to_contain_text("no answer within 120 s")
    expect(page.locator("pre.stderr")).to_have_text("worker 2: ...")
    page.get_by_role("link", name="trials", exact=True).click()
    expect(page.locator("table.trials tbody tr")).to_have_count(8 + 4 + 2 * 2)
    page.get_by_label("failed only").check()
    page.get_by_role("button", name="Show").click()
    expect(page.locator("table.trials tbody tr")).to_have_count(1)


def test_two_strategies_are_compared(page: Page, done: str) -> None:
    page.goto(f"/tunings/{done}")
    for words in ("Charts are being drawn.", "The comparison with DDP is being made."):
        expect(page.get_by_text(words)).to_have_count(0)  # what comes in late moves what is clicked
    page.get_by_label("Compare strategy 1").check()
    page.get_by_label("with strategy 2").check()
    page.get_by_role("button", name="Compare the two").click()
    expect(page).to_have_url(re.compile("/compare"))
    expect(page.locator(".facts-table thead th")).to_have_count(3)
    expect(page.locator("figure#timeline .plot-title")).to_have_count(2)


def test_a_running_tuning_comes_in_live(page: Page, shown_database: Database) -> None:
    held, store = claimed(shown_database, REQUEST)
    page.goto(f"/tunings/{held.job_id}")
    expect(page.locator("#state")).to_have_text("running")
    expect(page.get_by_text("The first trial has not finished yet.")).to_be_visible()
    run_search(store, REQUEST)
    expect(page.get_by_text("search 8/8")).to_be_visible()
    expect(page.locator("table.ranked tbody tr")).to_have_count(8)
    expect(page.locator("figure#convergence")).to_be_visible()
    while plots(page.locator("figure#convergence"))[0]["points"].get("search", 0) < 7:
        page.wait_for_timeout(100)
    run_confirmation(shown_database, store, held, REQUEST)
    expect(page.locator("#state")).to_have_text("finished")
    expect(page.get_by_role("link", name="Download best.json")).to_be_visible()


def test_a_tuning_that_waits_for_another_measurement_says_so(
    page: Page, shown_database: Database
) -> None:
    held, store = claimed(shown_database, REQUEST)
    run_search(store, REQUEST)
    page.goto(f"/tunings/{held.job_id}")
    expect(page.get_by_role("status")).to_contain_text("search 8/8")
    expect(page.get_by_role("status")).to_contain_text(re.compile(r"about \d+ s left"))
    store.report(waiting("another measurement runs on this machine"))
    expect(page.get_by_role("status")).to_contain_text("another measurement runs on this machine")
    expect(page.get_by_role("status")).to_contain_text("search 8/8")
    job_queue.end_cancelled(shown_database, held)


def test_unshaped_links_and_estimates_are_said_beside_the_headline(
    page: Page, shown_database: Database
) -> None:
    held, store = claimed(shown_database, replace(REQUEST, launcher="auto"))
    page.goto(f"/tunings/{held.job_id}")
    badges = page.locator(".heading .tag.caveat")
    expect(badges).to_have_text(["compute estimated"])
    run_search(store, REQUEST, launcher="local (unshaped links)")
    expect(badges).to_have_text(["links not shaped", "compute estimated"])
    expect(page.locator(".heading")).to_contain_text("do not stand for the cluster")
    expect(page.locator(".heading")).to_contain_text("Measured on local (unshaped links)")
    page.goto("/")
    row = page.locator("table.tunings tbody tr").filter(
        has=page.locator(f"a[href$='{held.job_id}']")
    )
    expect(row.locator(".tag.caveat")).to_have_text(["links not shaped", "compute estimated"])
    job_queue.end_cancelled(shown_database, held)
