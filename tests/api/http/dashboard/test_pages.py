"""What pages say without scripts: filters, comparisons, and words that do not mislead."""

import html
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
from fastapi.testclient import TestClient

from autosync.api.db import Database
from autosync.api.db.tables import StrategySummaryRow
from autosync.api.engine import job_queue
from autosync.api.engine.submission import enqueue
from autosync.api.engine.worker_registry import register
from autosync.api.http.access.access_rules import Access
from autosync.api.http.app import create_app
from autosync.api.spec import TuningSpec
from autosync.api.views import reports
from autosync.api.views.dashboard.strategy_accounts import strategy_account
from autosync.api.views.dashboard.tuning_form import form_of_tuning
from autosync.api.views.rankings import RankingFilter, baseline_strategy, found_strategies
from autosync.search.loop.outcome import DDP
from autosync.search.space import SPACES
from tests.api.databases import opened
from tests.api.http.forms import given_token
from tests.api.sample import (
    claimed,
    confirming_without_ddp,
    finished,
    run_search,
    small_request,
)
from tests.api.views.test_lists import rows_of, whole

REQUEST = small_request(budget=8)


@pytest.fixture(scope="module")
def shown(module_url: str) -> Iterator[Database]:
    with opened(module_url) as database:
        yield database


@pytest.fixture(scope="module")
def tuning_id(shown: Database) -> str:
    return finished(shown, REQUEST)


@pytest.fixture(scope="module")
def reader(module_url: str, shown: Database) -> Iterator[TestClient]:
    with (
        opened(module_url) as database,
        TestClient(create_app(database), base_url="http://127.0.0.1") as client,
    ):
        yield client


def text_of(client: TestClient, path: str, status: int = 200) -> str:
    """What a reader sees: without tags, spaces made one."""
    answer = client.get(path, headers={"accept": "text/html"})
    assert answer.status_code == status, answer.text
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


def shown_ids(client: TestClient, path: str, kind: str = "strategies") -> list[str]:
    """Of the strategies or trials that a table links to, in its order."""
    page = client.get(path, headers={"accept": "text/html"}).text
    table = page[page.index("<tbody>") : page.index("</tbody>")]
    return list(dict.fromkeys(re.findall(rf"/{kind}/([0-9a-f]+)", table)))


def test_the_ranking_is_filtered_and_sorted_by_its_address(
    reader: TestClient, shown: Database, tuning_id: str
) -> None:
    of = f"/tunings/{tuning_id}"
    with shown.reading() as session:
        rows = reports.ranked_strategies(session, tuning_id).items
    assert shown_ids(reader, of) == [row.strategy_id for row in rows]
    by_prediction = sorted(rows, key=lambda row: (row.predicted_seconds, row.strategy_id))
    found = shown_ids(reader, f"{of}?sort=predicted_seconds")
    assert found == [row.strategy_id for row in by_prediction]
    confirmed = {row.strategy_id for row in rows if row.confirmed}
    assert set(shown_ids(reader, f"{of}?state=confirmed")) == confirmed
    failed = [row.strategy_id for row in rows if row.step_seconds is None]
    measured = [row.strategy_id for row in rows if row.step_seconds is not None]
    assert len(failed) == 1
    assert shown_ids(reader, f"{of}?sort=-step_seconds") == [*measured[::-1], *failed]
    assert shown_ids(reader, f"{of}?state=failed") == failed
    reduced = {row.strategy_id for row in rows if "all-reduce" in row.words}
    assert set(shown_ids(reader, f"{of}?text=ALL-reduce")) == reduced
    assert len(reduced) < len(rows)
    assert "None of these." in text_of(reader, f"{of}?text=nobody")
    assert "state is 'asleep'" in text_of(reader, f"{of}?state=asleep", 422)
    assert "there is no sort" in text_of(reader, f"{of}?sort=colour", 422)


def test_a_filtered_ranking_comes_in_pages_and_keeps_ranks(database: Database) -> None:
    tuning = finished(database, REQUEST)
    with database.reading() as session:
        ranks = {
            row.strategy_id: row.rank for row in reports.ranked_strategies(session, tuning).items
        }
        for wanted in (RankingFilter(sort="-spread"), RankingFilter("", "measured", "origin")):
            together = found_strategies(session, tuning, 100, None, wanted).items
            assert len(together) > 3
            pages = whole(partial(found_strategies, session, tuning, 3, wanted=wanted))
            assert rows_of(pages) == together
            assert all(row.rank == ranks[row.strategy_id] for row in together)


def test_trials_are_filtered_and_sorted_by_their_address(
    reader: TestClient, shown: Database, tuning_id: str
) -> None:
    of = f"/tunings/{tuning_id}/trials"
    with shown.reading() as session:
        trials = reports.trials(session, tuning_id).items
    positions = [str(trial.position) for trial in trials]
    assert shown_ids(reader, of, "trials") == positions
    assert shown_ids(reader, f"{of}?sort=-position", "trials") == positions[::-1]
    searched = [str(trial.position) for trial in trials if trial.phase == "search"]
    assert shown_ids(reader, f"{of}?phase=search", "trials") == searched
    failed = [str(trial.position) for trial in trials if trial.error_kind]
    assert shown_ids(reader, f"{of}?failed=true", "trials") == failed
    of_ddp = [str(trial.position) for trial in trials if trial.origin == DDP]
    assert shown_ids(reader, f"{of}?text={DDP}&phase=confirm", "trials") == of_ddp[1:]


def test_several_tunings_are_compared_on_one_chart(
    reader: TestClient, shown: Database, tuning_id: str
) -> None:
    ids = [tuning_id, finished(shown, REQUEST), finished(shown, REQUEST)]
    path = "/compare?" + "&".join(f"tuning={each}" for each in ids)
    page = reader.get(path).text
    assert page.count("<figure") == 1
    assert page.count('"kind": "steps"') == 3
    assert "3 tunings compared" in text_of(reader, path)
    assert "Choose 2 to 6" in text_of(reader, f"/compare?tuning={ids[0]}", 422)
    assert "Choose 2 to 6" in text_of(reader, "/compare", 422)


def test_updates_of_other_numbers_of_batches_are_compared_by_speed_ups(
    reader: TestClient, shown: Database, tuning_id: str
) -> None:
    several = enqueue(shown, replace(REQUEST, domain=replace(REQUEST.domain, accumulate=4)))
    path = f"/compare?tuning={tuning_id}&tuning={several}"
    assert "compare speed-ups, not times" in text_of(reader, path)
    assert "times as fast as its DDP" in reader.get(path).text
    assert "batches before the last of an update" in text_of(reader, f"/tunings/{several}/charts")
    job_queue.cancel(shown, several)


def test_trials_that_ran_faster_than_the_cluster_are_not_called_slower(
    reader: TestClient, shown: Database, tuning_id: str
) -> None:
    faster = finished(shown, replace(REQUEST, time_scale=0.5))
    page = text_of(reader, f"/tunings/{faster}")
    assert "what was measured divided by 0.5, since trials ran 2 times faster" in page
    assert "Speed of trials 2 times faster than the cluster" in page
    trial = text_of(reader, f"/tunings/{faster}/trials/0")
    assert "Speed of the trial 2 times faster than the cluster" in trial
    both = text_of(reader, f"/compare?tuning={tuning_id}&tuning={faster}")
    assert "Speed of trials ≠ 2 times slower 2 times faster" in both


def test_before_there_is_an_answer_speed_ups_say_what_they_are_over(sqlite: Database) -> None:
    """DDP ran out of memory: finalists run beside another design."""
    tuning_id = confirming_without_ddp(sqlite, REQUEST)
    with sqlite.reading() as session:
        base = baseline_strategy(session, tuning_id)
        assert base is not None
        name, key = base.origin, base.strategy_id
    assert name != DDP
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        for part in ("ranked", "frameworks", f"strategies/{key}"):
            page = text_of(client, f"/tunings/{tuning_id}/{part}")
            assert f"Over {name}" in page
            assert "Over DDP" not in page


def test_sizes_of_buckets_are_no_slices(client: TestClient, sqlite: Database) -> None:
    """torch's DDP sends each bucket in one message."""
    tuning_id = finished(sqlite, small_request(space=SPACES["buckets"]))
    with sqlite.reading() as session:
        rows = reports.ranked_strategies(session, tuning_id).items
    sized = next(row.strategy_id for row in rows if "bucket_cap_mb=" in row.words)
    page = text_of(client, f"/tunings/{tuning_id}/strategies/{sized}")
    assert "Slices none none" in page
    assert "all-reduce" in page
    assert "all reduce" not in page, "one word for one thing"


def test_a_comparison_says_what_was_measured(
    reader: TestClient, shown: Database, tuning_id: str
) -> None:
    with shown.reading() as session:
        rows = reports.ranked_strategies(session, tuning_id).items
    ddp = next(row for row in rows if row.is_ddp)
    page = text_of(
        reader,
        f"/tunings/{tuning_id}/compare?left={rows[0].strategy_id}&right={ddp.strategy_id}",
    )
    assert rows[0].step_seconds is not None
    assert rows[0].speedup is not None
    assert f"{rows[0].step_seconds * 1e3:.1f} ms, spread" in page
    assert f"Over DDP ≠ {rows[0].speedup:.2f}× (" in page


def test_step_times_are_shown_by_choice(reader: TestClient, tuning_id: str) -> None:
    assert "progress need JavaScript" in text_of(reader, f"/tunings/{tuning_id}")
    page = text_of(reader, f"/tunings/{tuning_id}/charts")
    assert "Step time by choice" in page
    assert "as gradients become ready Order of messages" in page


def test_a_tuning_is_started_like_another(reader: TestClient, shown: Database) -> None:
    space = replace(REQUEST.space, factors=False)
    settings = replace(REQUEST.settings, iterations=3, alpha=0.75)
    first = finished(shown, replace(REQUEST, space=space, settings=settings, time_scale=7 / 3))
    page = reader.get(f"/?like={first}").text
    assert f'name="like" value="{first}"' in page
    with shown.reading() as session:
        form = form_of_tuning(session, first)
    fields = {**form.fields, "budget": "5", "like": first, **given_token(reader)}
    answer = reader.post("/tunings", data=fields, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    second = answer.headers["location"].rpartition("/")[2]
    with shown.reading() as session:
        asked = [form_of_tuning(session, each) for each in (first, second)]
        tunings = [reports.tuning(session, each) for each in (first, second)]
    assert asked[1].others == asked[0].others
    assert asked[1].others["advanced"]["alpha"] == 0.75
    assert asked[1].others["space"]["factors"] is False
    assert asked[1].fields == {**asked[0].fields, "budget": "5"}
    assert tunings[1].domain_id == tunings[0].domain_id
    assert tunings[1].time_scale == tunings[0].time_scale == 7 / 3
    job_queue.cancel(shown, second)
    other = {**fields, "graph": "vgg16", **given_token(reader)}
    answer = reader.post("/tunings", data=other, follow_redirects=False)
    assert answer.status_code == 303, "the profile is not that of another model"
    job_queue.cancel(shown, answer.headers["location"].rpartition("/")[2])


def test_the_form_of_a_bundled_model_names_it(client: TestClient, sqlite: Database) -> None:
    spec = TuningSpec(graph="resnet50", cluster="example-4x1", batch_size=16, byte_scale=0.125)
    posted = client.post("/v1/tunings", content=spec.model_dump_json(exclude_unset=True))
    with sqlite.reading() as session:
        fields = form_of_tuning(session, posted.json()["id"]).fields
    assert (fields["graph"], fields["batch_size"]) == ("resnet50", "16")
    assert (fields["cluster"], fields["byte_scale"]) == ("example-4x1", "0.125")


def test_what_other_frameworks_can_run_stands_beside_the_answer(
    reader: TestClient, shown: Database, tuning_id: str
) -> None:
    page = reader.get(f"/tunings/{tuning_id}/frameworks").text
    found = re.search(r"for=ddp&amp;strategy=([0-9a-f]+)", page)
    assert found is not None
    with shown.reading() as session:
        rows = reports.ranked_strategies(session, tuning_id).items

    def is_exported(strategy_id: str) -> bool:
        asked = f"/v1/tunings/{tuning_id}/settings?for=ddp&strategy={strategy_id}"
        return reader.get(asked).status_code == 200

    assert found[1] == next(row.strategy_id for row in rows if is_exported(row.strategy_id))
    measured = sum(row.step_seconds is not None for row in rows)
    told = f"None of the {measured} fastest measured strategies."
    assert told in text_of(reader, f"/tunings/{tuning_id}/frameworks")


def test_clusters_are_listed_with_devices_and_rates_and_found(
    reader: TestClient, tuning_id: str
) -> None:
    page = text_of(reader, "/clusters")
    assert re.search(r"grid [0-9a-f]{8} 4 4 × cpu 0\.956 Gbit/s", page)
    assert "2 × a10g, 2 × t4 9.56 to 23.9 Gbit/s" in page
    found = text_of(reader, "/clusters?text=V100")
    assert "v100" in found
    assert "a10g" not in found
    assert "grid" not in found
    assert "4 × cpu" in text_of(reader, "/clusters?text=cpu")
    assert "None of these" in text_of(reader, "/clusters?text=nobody")


def test_runtimes_have_a_page(reader: TestClient, tuning_id: str) -> None:
    page = reader.get("/runtimes").text
    (asked,) = re.findall(r"runtimes\.csv\?(graph=[^\"]+)", page)
    rows = reader.get(f"/v1/runtimes.csv?{html.unescape(asked)}").text.strip().splitlines()
    assert f">{len(rows) - 1}</td>" in page
    assert "No trial is of such" in text_of(reader, "/runtimes?text=nobody")


def test_a_wide_spread_is_not_settled(reader: TestClient, shown: Database) -> None:
    noisy = finished(shown, REQUEST)
    with shown.writing() as session:
        result = reports.tuning(session, noisy).result
        assert result is not None
        assert result.settled
        session.get_one(StrategySummaryRow, (noisy, result.strategy_id)).spread = 0.79
    page = text_of(reader, f"/tunings/{noisy}")
    assert "Speed-up, not settled" in page
    assert "Confirmed speed-up" not in page
    assert "spread by more than 20%" in page
    assert "not settled" in text_of(reader, "/")
    with shown.reading() as session:
        result = reports.tuning(session, noisy).result
    assert result is not None
    assert (result.settled, result.spread) == (False, 0.79)


def test_a_tuning_that_failed_early_expects_no_trial(reader: TestClient, shown: Database) -> None:
    held, _ = claimed(shown, REQUEST)
    job_queue.fail(shown, held, "no worker could start")
    page = text_of(reader, f"/tunings/{held.job_id}/charts")
    assert "The tuning failed before a trial measured anything." in page
    assert "has not finished yet" not in page
    assert "failed before anything could be compared" in text_of(reader, f"/tunings/{held.job_id}")
    assert text_of(reader, f"/tunings/{held.job_id}/frameworks") == "", "nothing was measured"


def test_who_waits_is_told_why(reader: TestClient, shown: Database) -> None:
    waiting = enqueue(shown, REQUEST)
    path = f"/tunings/{waiting}"
    assert "No worker runs. Start one with autosync worker" in text_of(reader, path)
    register(shown, "idle", 60.0, 0)
    assert "A worker takes it up in a moment." in text_of(reader, path)
    with shown.writing() as session:
        job_queue.enqueue_training(session)
    training = job_queue.claim(shown, "idle", kind="training")
    assert training is not None
    assert "A worker takes it up in a moment." in text_of(reader, path), "it trains beside tunings"
    assert "1 worker, none busy" in text_of(reader, "/fragments/service")
    job_queue.release(shown, training)
    held = job_queue.claim(shown, "idle", tuning_id=waiting)
    assert held is not None
    behind = enqueue(shown, REQUEST)
    page = text_of(reader, f"/tunings/{behind}")
    assert "The worker is busy" in page
    assert "autosync worker" not in page
    assert "1 worker, 1 busy 1 tuning waits" in text_of(reader, "/fragments/service")
    job_queue.end_cancelled(shown, held)
    job_queue.cancel(shown, behind)


def test_bytes_by_nic_are_those_that_were_counted(shown: Database) -> None:
    request = replace(REQUEST, byte_scale=1 / 64)
    held, store = claimed(shown, request)
    run_search(store, request)
    with shown.reading() as session:
        first = reports.ranked_strategies(session, held.job_id).items[0].strategy_id
        account = strategy_account(session, held.job_id, first)
    assert account.sent_bytes == (1_000_000, 900_000, 900_000, 1_000_000)
    job_queue.end_cancelled(shown, held)


def test_every_term_of_a_page_is_in_the_glossary(reader: TestClient, tuning_id: str) -> None:
    known = set(re.findall(r'<dt id="([\w-]+)">', reader.get("/glossary").text))
    used: set[str] = set()
    for path in ("/", "/runtimes", f"/tunings/{tuning_id}", f"/tunings/{tuning_id}/trials/0"):
        used |= set(re.findall(r"/glossary#([\w-]+)", reader.get(path).text))
    assert len(used) > 5
    assert used <= known


def test_a_page_that_needs_a_key_leads_to_the_log_in(sqlite: Database) -> None:
    """A browser whose session has ended presses a button."""
    app = create_app(sqlite, Access("open sesame"))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        headers = {"accept": "text/html", "referer": "http://127.0.0.1/clusters?text=a%20b"}
        answer = client.post("/clusters", headers=headers)
    assert answer.status_code == 401
    assert 'href="/login?next=/clusters%3Ftext%3Da%2520b"' in answer.text


def test_predictions_have_an_interval_and_what_binds(
    reader: TestClient, shown: Database, tuning_id: str
) -> None:
    """Before enough was measured the interval is that of `autosync rank`."""
    with shown.reading() as session:
        first, second, *_ = reports.ranked_strategies(session, tuning_id).items
    of = f"/tunings/{tuning_id}"
    page = text_of(reader, f"{of}/strategies/{first.strategy_id}")
    ends = r"([\d.,]+) to ([\d.,]+) ms"
    found = re.search(rf"Predicted by timeline ([\d.,]+) ms {ends}, a guess, until 19", page)
    assert found is not None, page
    predicted, low, high = map(float, found.groups())
    assert low < predicted < high
    timeline = reader.get(f"/v1{of}/timeline?strategy={first.strategy_id}").json()
    assert f"Bound by {timeline['binding']} in the timeline simulator" in page
    both = text_of(reader, f"{of}/compare?left={first.strategy_id}&right={second.strategy_id}")
    assert re.search(rf"Predicted (≠ )?[\d.,]+ ms, {ends} expected", both)
    assert "once 19 strategies are measured" in text_of(reader, of)
    enough = finished(shown, small_request(budget=24))
    ranking = text_of(reader, f"/tunings/{enough}")
    assert "once 19 strategies are measured" not in ranking
    assert re.search(rf"[\d.]+ ms {ends}", ranking)
    tunings = text_of(reader, f"/compare?tuning={tuning_id}&tuning={enough}")
    assert re.search(rf"Answer predicted ≠ [\d.]+ ms [\d.]+ ms, {ends} expected", tunings)
