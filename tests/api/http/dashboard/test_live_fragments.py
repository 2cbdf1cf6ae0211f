"""Parts of a page that come anew keep what a reader has done: focus, selection, scroll, choices."""

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, expect

from autosync.api.db import Database
from autosync.api.engine import job_queue
from autosync.api.engine.tuning_control import write_notes
from autosync.api.views import reports
from tests.api.http.forms import plots
from tests.api.sample import claimed, finished, run_confirmation, run_search, small_request

REQUEST = small_request(budget=8)
ACTIVE = "document.activeElement.id"
SELECTED = "getSelection().toString()"


@contextmanager
def list_comes_anew(page: Page, database: Database, tuning_id: str, note: str) -> Iterator[None]:
    """In the block a reader does something; after it the list has come with another note."""
    yield
    write_notes(database, tuning_id, "", note)
    expect(page.locator(f"#tuning-{tuning_id}")).to_contain_text(note)


def test_the_list_keeps_focus_selection_and_choices(page: Page, shown_database: Database) -> None:
    first, second = finished(shown_database, REQUEST), finished(shown_database, REQUEST)
    page.goto("/")
    with list_comes_anew(page, shown_database, second, "once"):
        page.locator(f"#link-{first}").focus()
        page.locator(f"#choose-{first}").evaluate("box => { box.checked = true; }")
        page.evaluate(f"getSelection().selectAllChildren(document.getElementById('link-{first}'))")
    assert page.evaluate(ACTIVE) == f"link-{first}"
    assert page.evaluate(SELECTED) == "chain"
    expect(page.locator(f"#choose-{first}")).to_be_checked()
    with list_comes_anew(page, shown_database, second, "twice"):
        page.locator("#sort-model").focus()
    assert page.evaluate(ACTIVE) == "sort-model"


def test_a_table_that_a_reader_has_scrolled_stays_so(page: Page, shown_database: Database) -> None:
    tuning_id = finished(shown_database, REQUEST)
    page.set_viewport_size({"width": 600, "height": 800})
    page.goto("/")
    table = page.locator("#tunings .scroll")
    with list_comes_anew(page, shown_database, tuning_id, "scrolled"):
        table.evaluate("each => { each.scrollLeft = 20; }")
        before = table.evaluate("each => each.scrollLeft")
        assert before > 0
    assert table.evaluate("each => each.scrollLeft") == before


def test_a_running_tunings_page_keeps_what_is_open(page: Page, shown_database: Database) -> None:
    held, store = claimed(shown_database, REQUEST)
    run_search(store, REQUEST)
    page.goto(f"/tunings/{held.job_id}")
    figure = page.locator("figure#convergence")
    figure.locator("summary").click()
    words = page.locator("table.ranked details.words").first
    words.locator("summary").click()
    link = page.locator("table.ranked a.strategy").nth(2)
    link.focus()
    chosen = link.get_attribute("href")
    assert plots(figure)
    canvas = figure.locator("canvas").first
    canvas.evaluate("each => { each.mine = true; }")
    run_confirmation(shown_database, store, held, REQUEST)
    expect(page.locator("#state")).to_have_text("finished")
    expect(page.locator("figure#confirmation")).to_be_visible()
    assert page.evaluate("document.activeElement.getAttribute('href')") == chosen
    assert figure.locator("details").get_attribute("open") is not None
    expect(page.locator("table.ranked details.words[open]")).to_have_count(1)
    assert canvas.evaluate("each => each.mine"), "the canvas itself stays"
    assert plots(figure)[0]["points"]["confirmation"] > 0, "and shows what came"


def test_a_running_tunings_page_keeps_what_is_typed_and_chosen_in_its_search(
    page: Page, shown_database: Database
) -> None:
    held, store = claimed(shown_database, REQUEST)
    run_search(store, REQUEST)
    page.goto(f"/tunings/{held.job_id}")
    words, state = page.get_by_role("searchbox"), page.locator("#ranked select[name=state]")
    state.select_option("failed")
    words.fill("slices")
    run_confirmation(shown_database, store, held, REQUEST)
    expect(page.locator("#ranked .tag.answer")).to_be_visible()
    expect(words).to_have_value("slices")
    expect(words).to_be_focused()
    expect(state).to_have_value("failed")


def test_the_fastest_so_far_is_explained_unless_a_reader_has_chosen(
    page: Page, shown_database: Database
) -> None:
    held, store = claimed(shown_database, REQUEST)
    page.goto(f"/tunings/{held.job_id}")
    expect(page.locator("#why")).to_contain_text("appears with the first measured strategy")
    run_search(store, REQUEST)
    with shown_database.reading() as session:
        rows = reports.ranked_strategies(session, held.job_id).items
    assert not rows[0].is_ddp
    choice = page.locator("#strategy-shown")
    expect(choice).to_have_value(rows[0].strategy_id)
    expect(page.locator("#why h2")).to_contain_text("beside DDP")
    choice.select_option(rows[2].strategy_id)
    expect(page.locator("#strategy-shown[data-chosen]")).to_have_value(rows[2].strategy_id)
    run_confirmation(shown_database, store, held, REQUEST)
    expect(page.locator("#state")).to_have_text("finished")
    expect(page.locator("#frameworks table")).to_be_visible()
    expect(choice).to_have_value(rows[2].strategy_id)


def test_links_to_forms_open_them(page: Page) -> None:
    for path, form in (("/models#upload", "/models"), ("/clusters#upload", "/clusters")):
        page.goto(path)
        expect(page.locator(f"#upload form[action='{form}']")).to_be_visible()
    page.goto("/")
    page.get_by_text("Start a tuning").click()
    page.get_by_role("link", name="upload a graph").click()
    expect(page.locator("#upload form")).to_be_visible()


def test_on_a_phone_speed_up_and_state_come_first(page: Page, shown_database: Database) -> None:
    tuning_id = finished(shown_database, REQUEST)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/")
    row = page.locator(f"#tuning-{tuning_id}")
    places = {
        name: row.locator(name).bounding_box() for name in (".state", ".speedup", ".name", ".where")
    }
    tops = {name: box["y"] for name, box in places.items() if box is not None}
    assert len(tops) == len(places)
    assert max(tops[".state"], tops[".speedup"]) < min(tops[".name"], tops[".where"])
    assert all(box and box["x"] + box["width"] <= 390 for box in places.values()), "nothing is cut"
    page.goto(f"/tunings/{tuning_id}")
    state, headline = page.locator("#state").bounding_box(), page.locator("h1").bounding_box()
    assert state is not None
    assert headline is not None
    assert state["y"] < headline["y"]


def test_the_status_bar_says_who_works(page: Page, shown_database: Database) -> None:
    held, _ = claimed(shown_database, REQUEST)
    page.goto("/models")
    expect(page.locator("#service")).to_contain_text("1 worker, 1 busy")
    job_queue.end_cancelled(shown_database, held)
