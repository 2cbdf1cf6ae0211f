"""The dashboard's home and its documents in a real browser: look for, sort, tag, upload, retry."""

import re
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Page, expect

from autosync.api.db import Database
from autosync.api.db.tables import TuningRow
from autosync.api.engine import job_queue
from autosync.api.engine.submission import enqueue
from autosync.api.engine.tuning_control import write_notes
from autosync.documents import to_json
from tests.api.http.forms import plots, shown_token
from tests.api.http.rest_answers import YAML
from tests.api.sample import claimed, finished, run_search, small_request
from tests.api.simulator_versions import store_versions
from tests.domains import chain_graph


def test_tunings_are_found_tagged_and_archived(page: Page, shown_database: Database) -> None:
    first, second = finished(shown_database), finished(shown_database)
    page.goto(f"/tunings/{first}")
    page.get_by_text("Tags and a note").click()
    page.get_by_label("Tags").fill("paper, good 50%")
    page.get_by_label("Note").fill("before the new switch")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".heading .tag-chip")).to_have_text(["paper", "good", "50%"])
    rows = page.locator("table.tunings tbody tr")
    page.goto("/")
    expect(rows).to_have_count(2)
    page.get_by_role("searchbox").fill("SWITCH gri")
    page.get_by_role("searchbox").press("Enter")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("before the new switch")
    page.get_by_label("Tag").select_option("50%")
    page.get_by_label("State", exact=True).select_option("finished")
    page.get_by_label("Sort").select_option("-speedup")
    page.get_by_role("button", name="Show").click()
    expect(rows).to_have_count(1)
    page.goto(f"/?text={second[:8]}")
    expect(rows).to_have_count(1)
    expect(rows.locator(f"a[href='/tunings/{second}']")).to_be_visible()
    page.goto("/?text=nobody")
    expect(page.get_by_text("None of these")).to_be_visible()
    page.goto(f"/tunings/{second}")
    page.get_by_role("button", name="Archive").click()
    expect(page.get_by_role("button", name="Take out of the archive")).to_be_visible()
    page.goto("/")
    expect(rows).to_have_count(1)
    page.get_by_label("archived").check()
    page.get_by_role("button", name="Show").click()
    expect(rows.locator(f"a[href='/tunings/{second}']")).to_be_visible()
    tuning_queue_places(page, shown_database)


def test_headings_sort_the_list_and_the_address_keeps_what_is_shown(
    page: Page, shown_database: Database
) -> None:
    done = finished(shown_database)
    waiting = enqueue(shown_database, small_request())
    for tuning_id in (done, waiting):
        write_notes(shown_database, tuning_id, "headings", "")
    page.goto("/?tag=headings&text=chain")
    started = page.get_by_role("columnheader", name="Started")
    faster = page.get_by_role("columnheader", name="Over DDP")
    links = page.locator("table.tunings tbody a[href^='/tunings/']")
    expect(started).to_have_attribute("aria-sort", "descending")
    expect(links.first).to_have_attribute("href", f"/tunings/{waiting}")
    started.get_by_role("link").click()
    expect(started).to_have_attribute("aria-sort", "ascending")
    expect(links.first).to_have_attribute("href", f"/tunings/{done}")
    for direction in ("descending", "ascending"):  # what has no answer comes last either way
        faster.get_by_role("link").focus()
        page.keyboard.press("Enter")
        expect(faster).to_have_attribute("aria-sort", direction)
        expect(links.first).to_have_attribute("href", f"/tunings/{done}")
    expect(page).to_have_url(re.compile(r"text=chain&tag=headings&sort=speedup"))
    faster.get_by_role("link").focus()
    page.reload()
    expect(faster).to_have_attribute("aria-sort", "ascending")
    expect(page.get_by_label("Sort")).to_have_value("speedup")
    expect(links).to_have_count(2)
    job_queue.cancel(shown_database, waiting)


def tuning_queue_places(page: Page, database: Database) -> None:
    """Those that wait say which place they have; two tunings are compared."""
    waiting = [enqueue(database, small_request()) for _ in range(2)]
    page.goto("/?state=queued&sort=created")
    rows = page.locator("table.tunings tbody tr")
    expect(rows.first).to_contain_text("place 1 in the queue")
    expect(rows.last).to_contain_text("place 2 in the queue")
    for tuning_id in waiting:
        page.get_by_label(f"Compare chain {tuning_id[:8]}").check()
    page.get_by_role("button", name="Compare those chosen").click()
    expect(page.locator(".facts-table thead th")).to_have_count(3)
    for tuning_id in waiting:
        job_queue.cancel(database, tuning_id)


def test_a_tuning_that_failed_goes_on_again(page: Page, shown_database: Database) -> None:
    held, store = claimed(shown_database, small_request())
    run_search(store, small_request())
    job_queue.fail(shown_database, held, "the cluster's links went away")
    page.goto(f"/tunings/{held.job_id}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("chain on grid failed; so far")
    expect(page.get_by_role("alert")).to_contain_text("the cluster's links went away")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#state")).to_have_text("queued")
    expect(page.locator("table.ranked tbody tr")).to_have_count(6)
    again = page.request.post(f"/tunings/{held.job_id}/resume", form=shown_token(page))
    assert again.status == 200  # one that waits is left as it is
    with shown_database.reading() as session:
        assert session.get_one(TuningRow, held.job_id).state == "queued"
    job_queue.cancel(shown_database, held.job_id)


def test_models_and_clusters_are_uploaded_and_shown(page: Page, tmp_path: Path) -> None:
    graph, cluster = tmp_path / "graph.json", tmp_path / "pair.yaml"
    graph.write_text(to_json(chain_graph()))
    cluster.write_text(YAML.replace("two", "uploaded-pair").replace("9.5", "2.5", 1))
    page.goto("/models")
    page.get_by_text("Upload a model's graph").click()
    wrong = page.request.post(
        "/models",
        multipart={
            "document": {"name": "a", "mimeType": "text/plain", "buffer": b"no graph"},
            **shown_token(page),
        },
    )
    assert wrong.status == 422
    assert 'role="alert"' in wrong.text()
    page.get_by_label("Graph").set_input_files(graph)
    page.get_by_role("button", name="Upload").click()
    expect(page).to_have_url(re.compile("/models/[0-9a-f]{32}$"))
    expect(page.get_by_role("heading", level=1)).to_contain_text("chain")
    assert plots(page.locator("figure#model"))
    expect(page.locator("h2#variables + .card tbody tr")).to_have_count(6)
    page.goto("/clusters")
    page.get_by_text("Upload a cluster file").click()
    page.get_by_label("Cluster", exact=True).set_input_files(cluster)
    page.get_by_role("button", name="Upload").click()
    expect(page).to_have_url(re.compile("/clusters/[0-9a-f]{32}$"))
    expect(page.locator("#nodes tbody")).to_contain_text("2.5 Gbit/s")
    page.get_by_role("link", name="Tune on it").click()
    expect(page.locator("select[name=cluster] option:checked")).to_contain_text("uploaded-pair")


def test_a_simulator_has_a_page_and_a_version_is_brought_back(
    page: Page, shown_database: Database
) -> None:
    request = replace(small_request(), simulator="learned")
    first = finished(shown_database, request)
    store_versions(shown_database, first)
    page.goto("/")
    page.get_by_text("Start a tuning").click()
    page.get_by_text("More choices").click()
    expect(page.locator("select[name=simulator] option[value=version-3]")).to_be_attached()
    tuning_id = finished(shown_database, request)
    page.goto(f"/tunings/{tuning_id}")
    page.locator("#charts").get_by_role("link", name="learned, version 3").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Version 3 of the simulator")
    expect(page.locator("#state")).to_have_text("in use")
    expect(page.get_by_role("link", name=first[:8])).to_be_visible()
    card = page.locator("dl")
    expect(card).to_contain_text("gaussian process")
    expect(card).to_contain_text("Seed")
    expect(card).to_contain_text("torch 2.13.0")
    expect(page.locator("#sources tbody tr")).to_have_count(3)
    expect(page.locator("table.tunings a", has_text="chain")).to_have_attribute(
        "href", f"/tunings/{tuning_id}"
    )
    chart = page.locator("figure#versions")
    assert plots(chart)[0]["points"]["held-out strategies"] == 3
    chart.locator("summary").click()
    expect(chart.locator("tbody tr").first).to_contain_text("91.0%")
    expect(chart.locator("tbody tr").last).to_contain_text("kept aside")
    card.get_by_role("link", name="version-2").click()
    page.get_by_role("button", name="Use version 2").click()
    rows = page.locator("table.versions tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.nth(1)).to_contain_text("in use")
    rows.last.get_by_role("link", name="0").click()
    expect(page.get_by_text("Comes with AutoSync")).to_be_visible()
    expect(page.locator("dl")).to_contain_text("gaussian process")
    page.get_by_role("button", name="Use version 0").click()
    expect(rows.last).to_contain_text("in use")
    unknown = page.request.get("/simulators/nobody", headers={"accept": "text/html"})
    assert unknown.status == 404
