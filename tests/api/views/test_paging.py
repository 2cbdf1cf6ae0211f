"""Lists in pages: whole together, stable while rows are added, each read by an index."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session

from autosync.api.db import Database
from autosync.api.engine.job_queue import enqueue_training
from autosync.api.engine.submission import enqueue
from autosync.api.views import reports, simulator_versions_view, stored_documents
from autosync.api.views.exports import bundle_document
from autosync.api.views.paging import written_cursor
from autosync.api.views.rankings import ranked_strategy
from autosync.api.views.schemas import Page
from autosync.errors import InvalidInput
from tests.api.sample import finished, small_request

REQUEST = small_request(budget=8)
GROWS = ("trials", "proposals", "strategy_summaries", "tunings", "events", "strategies")
"""Tables of many rows."""


def whole(read: Callable[[str | None], Any]) -> list[list[Any]]:
    """The items of each page, to the last one."""
    page = read(None)
    pages = [page.items]
    while page.next is not None:
        page = read(page.next)
        pages.append(page.items)
    return pages


def test_the_pages_of_a_ranking_are_the_ranking(database: Database) -> None:
    tuning_id = finished(database, REQUEST)
    with database.reading() as session:
        together = reports.ranked_strategies(session, tuning_id).items
        pages = whole(lambda cursor: reports.ranked_strategies(session, tuning_id, 3, cursor))
        assert [len(page) for page in pages] == [3, 3, 2]
        assert [row for page in pages for row in page] == together
        for row in together:
            assert ranked_strategy(session, tuning_id, row.strategy_id) == row


def test_the_pages_of_trials_are_all_trials(database: Database) -> None:
    tuning_id = finished(database, REQUEST)
    with database.reading() as session:
        together = reports.trials(session, tuning_id).items
        pages = whole(lambda cursor: reports.trials(session, tuning_id, 5, cursor))
    assert [row for page in pages for row in page] == together
    assert [row.position for row in together] == list(range(len(together)))


def test_rows_that_come_meanwhile_shift_no_page(database: Database) -> None:
    ids = [enqueue(database, REQUEST) for _ in range(5)]
    with database.reading() as session:
        first = reports.tunings(session, 2)
    later = enqueue(database, REQUEST)
    with database.reading() as session:
        rest = whole(lambda cursor: reports.tunings(session, 2, cursor or first.next))
        newest = reports.tunings(session, 1)
    assert newest.items[0].id == later
    assert [row.id for row in first.items] + [row.id for page in rest for row in page] == ids[::-1]
    assert first.total == 5


def test_tunings_of_one_state(sqlite: Database) -> None:
    enqueue(sqlite, REQUEST)
    ended = finished(sqlite, REQUEST)  # the queue's oldest
    with sqlite.reading() as session:
        found = reports.tunings(session, 10, state="finished")
        assert ([row.id for row in found.items], found.total) == ([ended], 1)
        assert reports.tunings(session, 10, state="failed").items == []


def test_documents_and_trainings_come_in_pages(database: Database) -> None:
    finished(database, REQUEST)
    with database.writing() as session:
        enqueue_training(session)
    lists: tuple[Callable[[Session, int, str | None], Page], ...] = (
        stored_documents.graphs,
        stored_documents.clusters,
        stored_documents.simulators,
        simulator_versions_view.simulator_trainings,
        simulator_versions_view.simulator_versions,
    )
    with database.reading() as session:
        for read in lists:
            pages = whole(partial(read, session, 1))
            assert all(len(page) <= 1 for page in pages)


FOREIGN = (
    "garbage",
    "%%%",
    written_cursor("a", 1.0),
    written_cursor(1.0),
    written_cursor(1.0, "\x00"),
    written_cursor(True, "a"),
    written_cursor("-created", "a", "a"),
    written_cursor("created", 1.0, "a"),
    "W" * 3000,
)
"""Cursors that no list here has given."""


def test_a_cursor_of_another_list_is_refused(database: Database) -> None:
    tuning_id = finished(database)
    with database.reading() as session:
        lists = (
            partial(reports.tunings, session, 5),
            partial(reports.ranked_strategies, session, tuning_id, 5),
            partial(stored_documents.graphs, session, 5),
        )
        for read in lists:
            read("")  # an empty one is none
            for cursor in FOREIGN:
                with pytest.raises(InvalidInput) as refused:
                    read(cursor)
                assert refused.value.thing == "cursor", cursor


@contextmanager
def statements(database: Database) -> Iterator[list[tuple[str, Any]]]:
    """Everything that is read in the block, with its parameters."""
    seen: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        seen.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(database.engine, "before_cursor_execute", note)


def test_no_read_walks_a_table_that_grows(sqlite: Database) -> None:
    """By SQLite's query plans: SCAN reads a whole table or index, SEARCH goes to the rows."""
    tuning_id = finished(sqlite, REQUEST)
    with sqlite.reading() as session:
        top = reports.ranked_strategies(session, tuning_id, 2)
        newest = reports.tunings(session, 1)
        some = reports.trials(session, tuning_id, 2)
    at = newest.items[0].created_at.timestamp()
    cursor = written_cursor("-created", at, newest.items[0].id)
    with statements(sqlite) as seen, sqlite.reading() as session:
        reports.tuning(session, tuning_id)
        reports.ranked_strategies(session, tuning_id, 2)
        reports.ranked_strategies(session, tuning_id, 2, top.next)
        reports.trials(session, tuning_id, 2, some.next)
        reports.time_left_words(session, newest.items[0])
        bundle_document(session, tuning_id, top.items[1].strategy_id)
        reports.tunings(session, 1, cursor)
    assert len(seen) > 10
    for statement, parameters in seen:
        with sqlite.engine.connect() as connection:
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plan = [row.detail for row in rows]
        if statement.startswith("SELECT count(*)"):  # `total` walks an index
            continue
        ordered = "ORDER BY tunings" in statement
        for step in plan:
            walks = step.startswith("SCAN") and step.split()[1] in GROWS
            assert not walks or (ordered and "USING INDEX" in step), (statement, plan)
            assert "TEMP B-TREE" not in step, (statement, plan)


def test_sums_are_those_of_the_trials_after_every_one(sqlite: Database) -> None:
    """What is kept on write never drifts: a repeated proposal or trial counts once."""
    tuning_id = finished(sqlite, REQUEST)
    with sqlite.reading() as session:
        trials = reports.trials(session, tuning_id).items
        rows = reports.ranked_strategies(session, tuning_id).items
        for row in rows:
            mine = [trial for trial in trials if trial.strategy_id == row.strategy_id]
            assert row.trials == len(mine)
            assert row.recorded == any(trial.recorded for trial in mine)
        assert session.execute(text("select count(*) from strategy_summaries")).scalar() == 8
