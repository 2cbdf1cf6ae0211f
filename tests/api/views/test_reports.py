"""The service ranks without parsing documents; it must judge as the search does."""

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq
import pytest
from sqlalchemy import select, text

from autosync.api.db import Database
from autosync.api.db.tables import StrategySummaryRow
from autosync.api.engine.database_store import DatabaseStore
from autosync.api.views import reports, runtimes
from autosync.api.views.exports import bundle_document
from autosync.api.views.runtimes import (
    COLUMNS,
    RuntimeFilter,
    runtimes_csv,
    runtimes_jsonl,
    runtimes_parquet,
)
from autosync.api.views.tuning_schemas import is_settled
from autosync.bundle import Bundle
from autosync.documents import from_json
from autosync.errors import NotFound
from autosync.search.loop.confirm import conclude
from autosync.search.loop.outcome import rank_measured
from autosync.trials.contract import MeasuredTimeline
from tests.api.sample import Shown, claimed, finished, run_search, small_request

REQUEST = small_request(budget=8)


def test_ranked_as_the_search_ranks(shown: Shown) -> None:
    database, tuning_id = shown.database, shown.first
    store = DatabaseStore(database, tuning_id, 1)
    expected = rank_measured(store.proposals(), store.trials())
    with database.reading() as session:
        ranked = reports.ranked_strategies(session, tuning_id).items
    assert [row.rank for row in ranked] == list(range(1, 9))
    for ours, theirs in zip(ranked, expected, strict=True):
        assert ours.strategy_id == theirs.candidate.strategy.id
        assert ours.step_seconds == theirs.step_seconds
        assert ours.spread == theirs.spread
        assert (ours.confirmed, ours.trials) == (theirs.confirmed, theirs.trials)
        assert (ours.error or "") == theirs.error
    outcome = conclude(store)
    best = next(row for row in ranked if row.strategy_id == outcome.best.strategy.id)
    assert (best.speedup_low, best.speedup, best.speedup_high) == (
        outcome.speedup_low,
        outcome.speedup,
        outcome.speedup_high,
    )


def test_what_waits_and_what_failed_come_last(sqlite: Database) -> None:
    held, store = claimed(sqlite, REQUEST)
    run_search(store, REQUEST)
    with sqlite.reading() as session:
        ranked = reports.ranked_strategies(session, held.job_id).items
    assert ranked[-1].step_seconds is None
    assert ranked[-1].error == "timeout: no answer within 120 s"
    measured = [row.step_seconds or 0.0 for row in ranked[:-1]]
    assert all(measured)
    assert measured == sorted(measured)
    assert [row.speedup is None for row in ranked] == [
        row.is_ddp or not row.trials or row.step_seconds is None for row in ranked
    ]
    assert not any(row.confirmed for row in ranked)


def test_no_speed_up_over_a_baseline_that_spreads_is_settled(sqlite: Database) -> None:
    tuning_id = finished(sqlite, REQUEST)
    with sqlite.writing() as session:
        before = reports.ranked_strategies(session, tuning_id).items
        (ddp,) = (row for row in before if row.is_ddp)
        session.get_one(StrategySummaryRow, (tuning_id, ddp.strategy_id)).spread = 0.79
        session.flush()
        after = reports.ranked_strategies(session, tuning_id).items
        result = reports.tuning(session, tuning_id).result
    assert result is not None
    assert not result.settled
    confirmed = [row for row in after if row.confirmed]
    assert len(confirmed) > 1
    assert all(row.settled for row in before)
    assert not any(row.settled for row in confirmed)
    assert any(is_settled(row.spread) for row in confirmed), "its own iterations agree"


def test_progress_is_readable_while_it_runs(sqlite: Database) -> None:
    held, store = claimed(sqlite, REQUEST)
    run_search(store, REQUEST)
    with sqlite.reading() as session:
        tuning = reports.tuning(session, held.job_id)
    assert (tuning.state, tuning.progress.phase) == ("running", "search")
    assert (tuning.progress.done, tuning.progress.total, tuning.progress.trials) == (8, 8, 8)
    assert tuning.progress.ranked == 30_000
    assert tuning.best_seconds == min(t.step_seconds for t in store.trials() if t.step_seconds)
    assert tuning.result is None


def test_runtimes_say_everything_about_every_trial(shown: Shown) -> None:
    database, tuning_id, other = shown.database, shown.first, shown.second
    rows = list(csv.DictReader(io.StringIO("".join(runtimes_csv(database)))))
    table = pq.read_table(io.BytesIO(b"".join(runtimes_parquet(database)))).to_pylist()
    assert {row["tuning_id"] for row in rows} == {tuning_id, other}
    with database.reading() as session:
        trials = reports.trials(session, tuning_id).items
    mine = [row for row in table if row["tuning_id"] == tuning_id]
    assert [row["trial"] for row in mine] == [trial.key for trial in trials]
    for row, trial in zip(mine, trials, strict=True):
        assert row["iteration_seconds"] == trial.iteration_seconds
        assert row["step_seconds"] == trial.step_seconds
        assert json.loads(row["versions"]) == trial.versions
        assert row["sent_bytes"] == trial.sent_bytes
        assert (row["timeline"] is not None) == trial.recorded
        assert (row["byte_scale"], row["time_scale"]) == (0.5, 2.0)
    assert len(rows) == len(table)
    assert set(rows[0]) == {name for name, _, _ in COLUMNS} == set(table[0]) - {"timeline"}
    assert {row["sent_bytes"] for row in rows} == {"1000000 900000 900000 1000000", ""}
    for row in table:
        if row["timeline"] is not None:
            assert row["phase"] == "confirm"
            assert from_json(MeasuredTimeline, row["timeline"]).clock == "shared"
    assert sum(row["timeline"] is not None for row in mine) == 4
    assert list(runtimes_csv(database, RuntimeFilter(domain="0" * 32))) == [
        "".join(runtimes_csv(database)).splitlines()[0] + "\r\n"
    ]


def test_tables_agree_however_many_rows_are_read_at_once(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = shown.database
    expected = "".join(runtimes_csv(database))
    monkeypatch.setattr(runtimes, "ROWS_AT_ONCE", 4)
    monkeypatch.setattr(runtimes, "ROW_GROUP_BYTES", 1)
    assert "".join(runtimes_csv(database)) == expected
    lines = [json.loads(line) for line in "".join(runtimes_jsonl(database)).splitlines()]
    parts = list(runtimes_parquet(database))
    assert len(parts) > 3
    file = pq.ParquetFile(io.BytesIO(b"".join(parts)))
    assert file.num_row_groups > 3
    table = file.read().to_pylist()
    for line, row in zip(lines, table, strict=True):
        row.pop("timeline")
        row["versions"] = json.loads(row["versions"])
        assert line == row


def test_runtimes_of_what_is_asked_for(shown: Shown) -> None:
    database, mine, other = shown.database, shown.first, shown.second
    with database.reading() as session:
        trials = reports.trials(session, mine).items
    moment = trials[3].created_at.timestamp()

    def count(**only: Any) -> int:
        return len("".join(runtimes_jsonl(database, RuntimeFilter(**only))).splitlines())

    every, of_mine = count(), count(tuning=mine)
    assert of_mine == len(trials)
    assert count(tuning=other) == every - of_mine
    assert count(graph="chain") == count(cluster="grid") == every
    assert count(domain=REQUEST.domain.id) == every
    assert count(graph="other") == count(cluster="other") == count(domain="0" * 32) == 0
    assert 0 < count(since=moment) < every
    assert count(since=moment) + count(until=moment) == every


def test_a_name_is_no_formula_in_a_spreadsheet(sqlite: Database) -> None:
    """Names come from whoever posted a document, and may begin as formulas do."""
    for start in "=+-@":
        graph = replace(REQUEST.domain.graph, name=f'{start}HYPERLINK("http://evil.example")')
        finished(sqlite, replace(REQUEST, domain=replace(REQUEST.domain, graph=graph)))
    rows = list(csv.DictReader(io.StringIO("".join(runtimes_csv(sqlite)))))
    assert {row["graph"][:2] for row in rows} == {"'=", "'+", "'-", "'@"}
    assert all(float(row["byte_scale"]) == 0.5 for row in rows)
    plain = pq.read_table(io.BytesIO(b"".join(runtimes_parquet(sqlite)))).to_pylist()
    assert {row["graph"][0] for row in plain} == set("=+-@")


def test_the_bundle_of_the_answer_and_of_any_strategy(shown_sqlite: Shown) -> None:
    tuning_id = shown_sqlite.first
    with shown_sqlite.database.reading() as session:
        tuning = reports.tuning(session, tuning_id)
        assert tuning.result is not None
        answer = from_json(Bundle, bundle_document(session, tuning_id))
        assert answer.strategy.id == tuning.result.strategy_id
        assert answer.evidence.step_seconds == tuning.result.best_seconds
        assert "byte scale 0.5, time scale 2" in answer.evidence.measured_on
        for row in reports.ranked_strategies(session, tuning_id).items:
            one = from_json(Bundle, bundle_document(session, tuning_id, row.strategy_id))
            assert one.strategy.id == row.strategy_id
            assert one.evidence.step_seconds == row.step_seconds
        with pytest.raises(NotFound, match="no strategy"):
            bundle_document(session, tuning_id, "f" * 32)


@pytest.mark.parametrize(
    "only",
    [
        RuntimeFilter(),
        RuntimeFilter(graph="chain"),
        RuntimeFilter(domain="0" * 32),
        RuntimeFilter(since=1.0, until=2e9),
    ],
)
def test_no_page_of_an_export_sorts_what_is_left(shown_sqlite: Shown, only: RuntimeFilter) -> None:
    """An export of n pages would otherwise look at n^2 / 2 of them."""
    page = runtimes._page(only, (1.0, "0" * 32, 3))
    with shown_sqlite.database.reading() as session:
        statement = select(page).compile(session.get_bind(), compile_kwargs={"literal_binds": True})
        plan = [row.detail for row in session.execute(text(f"EXPLAIN QUERY PLAN {statement}"))]
    assert any("USING COVERING INDEX" in step or "USING INDEX" in step for step in plan), plan
    assert not any("TEMP B-TREE" in step for step in plan), plan
