"""Lists: filtered, sorted, in pages that are whole together and stable while rows are added, each
read by an index."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from autosync.api.db import Database
from autosync.api.db.document_store import LONGEST_NAME
from autosync.api.engine.submission import enqueue
from autosync.api.engine.tuning_control import write_notes
from autosync.api.http.routes.pages import listed_tunings
from autosync.api.views import documents, reports, simulators
from autosync.api.views.exports import bundle_document
from autosync.api.views.paging import LONGEST_CURSOR, written_cursor
from autosync.api.views.rankings import ranked_strategy
from autosync.api.views.reports import TuningFilter
from autosync.api.views.schemas import Page
from autosync.errors import InvalidInput, NotFound, NotSupported
from tests.api.databases import statements
from tests.api.sample import Shown, finished, small_request
from tests.api.simulator_versions import store_versions
from tests.domains import chain_graph, domain_of, grid_cluster

REQUEST = small_request(budget=8)
GROWS = ("trials", "proposals", "strategy_summaries", "jobs", "events", "strategies")
"""Tables of many rows."""


def whole(read: Callable[[str | None], Any]) -> list[list[Any]]:
    """The items of each page, to the last one."""
    page = read(None)
    pages = [page.items]
    while page.next is not None:
        page = read(page.next)
        pages.append(page.items)
    return pages


def test_the_pages_of_a_ranking_are_the_ranking(shown: Shown) -> None:
    tuning_id = shown.first
    with shown.database.reading() as session:
        together = reports.ranked_strategies(session, tuning_id).items
        pages = whole(lambda cursor: reports.ranked_strategies(session, tuning_id, 3, cursor))
        assert [len(page) for page in pages] == [3, 3, 2]
        assert [row for page in pages for row in page] == together
        for row in together:
            assert ranked_strategy(session, tuning_id, row.strategy_id) == row


def test_the_pages_of_trials_are_all_trials(shown: Shown) -> None:
    tuning_id = shown.first
    with shown.database.reading() as session:
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


def test_simulators_and_their_trainings_come_in_pages(database: Database) -> None:
    store_versions(database)
    lists: tuple[Callable[[Session, int, str | None], Page], ...] = (
        simulators.simulators,
        simulators.simulator_trainings,
        simulators.simulator_versions,
    )
    with database.reading() as session:
        for read in lists:
            one_by_one, together = (whole(partial(read, session, limit)) for limit in (1, 3))
            assert [len(page) for page in one_by_one] == [1, 1, 1]
            assert [rows_of(one_by_one)] == together


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


def test_a_cursor_of_another_list_is_refused(shown: Shown) -> None:
    with shown.database.reading() as session:
        lists = (
            partial(reports.tunings, session, 5),
            partial(reports.ranked_strategies, session, shown.first, 5),
            partial(documents.graphs, session, 5),
        )
        for read in lists:
            read("")  # an empty one is none
            for cursor in FOREIGN:
                with pytest.raises(InvalidInput) as refused:
                    read(cursor)
                assert refused.value.thing == "cursor", cursor


def test_no_read_walks_a_table_that_grows(shown_sqlite: Shown) -> None:
    """By SQLite's query plans: SCAN reads a whole table or index, SEARCH goes to the rows."""
    sqlite, tuning_id = shown_sqlite.database, shown_sqlite.first
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
        ordered = "ORDER BY jobs" in statement
        for step in plan:
            walks = step.startswith("SCAN") and step.split()[1] in GROWS
            assert not walks or (ordered and "USING INDEX" in step), (statement, plan)
            assert "TEMP B-TREE" not in step, (statement, plan)


def test_sums_are_those_of_the_trials_after_every_one(shown_sqlite: Shown) -> None:
    """What is kept on write never drifts: a repeated proposal or trial counts once."""
    tuning_id = shown_sqlite.first
    with shown_sqlite.database.reading() as session:
        trials = reports.trials(session, tuning_id).items
        rows = reports.ranked_strategies(session, tuning_id).items
        for row in rows:
            mine = [trial for trial in trials if trial.strategy_id == row.strategy_id]
            assert row.trials == len(mine)
            assert row.recorded == any(trial.recorded for trial in mine)
        kept = text("select count(*) from strategy_summaries where tuning_id = :id")
        assert session.execute(kept, {"id": tuning_id}).scalar() == 8


def rows_of(pages: list[list[Any]]) -> list[Any]:
    return [row for page in pages for row in page]


def test_tunings_sorted(database: Database) -> None:
    done = [finished(database, small_request(budget)) for budget in (6, 7)]
    waiting = [enqueue(database, small_request()) for _ in range(2)]
    with database.reading() as session:
        for name in reports.TUNING_SORTS:
            assert_sorted(session, name, done, waiting)


def assert_sorted(session: Session, name: str, done: list[str], waiting: list[str]) -> None:
    """done: in the order of their beginning, as those that wait."""

    def ids(sort: str) -> list[str]:
        pages = whole(lambda at: reports.tunings(session, 1, at, TuningFilter(sort=sort)))
        assert [len(page) for page in pages] == [1] * 4
        return [row.id for row in rows_of(pages)]

    up, down = ids(name), ids(f"-{name}")
    values = {row.id: row for row in reports.tunings(session, 10).items}
    assert sorted(up) == sorted(down) == sorted([*done, *waiting])
    if name == "created":
        assert down == up[::-1] == [*done, *waiting][::-1]
        return
    if name in ("model", "cluster"):  # all alike
        return
    if name == "state":
        assert set(up[:2]) == set(down[2:]) == set(done)
        return
    assert set(up[2:]) == set(down[2:]) == set(waiting)  # they have no such value
    assert up[:2] == down[:2][::-1]
    if name == "finished":
        assert up[:2] == done
        return
    first, second = (values[each] for each in up[:2])
    assert first.best_seconds is not None
    assert second.best_seconds is not None
    assert first.result is not None
    assert second.result is not None
    if name == "best_seconds":
        assert first.best_seconds <= second.best_seconds
    else:
        assert first.result.speedup <= second.result.speedup


def test_trials_sorted(shown: Shown) -> None:
    tuning_id = shown.second
    with shown.database.reading() as session:
        for sort in ("step_seconds", "-step_seconds", "-position"):
            pages = whole(lambda at, s=sort: reports.trials(session, tuning_id, 4, at, s))  # type: ignore[misc]
            found = rows_of(pages)
            assert len({row.key for row in found}) == len(found) == 6 + 4 + 2 * 2
            if sort == "-position":
                assert [row.position for row in found] == list(range(14))[::-1]
                continue
            seconds = [row.step_seconds for row in found]
            assert seconds[-1] is None  # the one that failed
            measured = [each for each in seconds if each is not None]
            assert measured == sorted(measured, reverse=sort.startswith("-"))


def test_documents_sorted(database: Database) -> None:
    for nodes, width in ((2, 4), (3, 9), (4, 2)):
        graph = chain_graph(((width, width),))
        request = small_request()
        enqueue(database, type(request)(domain_of(graph, grid_cluster(nodes)), request.settings))
    with database.reading() as session:
        graphs = whole(lambda at: documents.graphs(session, 1, at, "-parameters"))
        assert [row.parameters for row in rows_of(graphs)] == [81, 16, 4]
        clusters = whole(lambda at: documents.clusters(session, 2, at, "world_size"))
        assert [row.world_size for row in rows_of(clusters)] == [2, 3, 4]


def test_a_page_may_end_at_the_longest_name(database: Database) -> None:
    """In characters that take the most bytes."""
    graph = replace(chain_graph(), name="\U00020000" * LONGEST_NAME)
    cluster = replace(grid_cluster(), name="\U00020001" * LONGEST_NAME)
    request = replace(small_request(), domain=domain_of(graph, cluster))
    ids = {enqueue(database, request) for _ in range(2)}
    with database.reading() as session:
        for sort in ("model", "-cluster"):
            pages = whole(lambda at, s=sort: reports.tunings(session, 1, at, TuningFilter(sort=s)))  # type: ignore[misc]
            assert {row.id for row in rows_of(pages)} == ids
            following = reports.tunings(session, 1, None, TuningFilter(sort=sort)).next
            assert following is not None
            assert len(following) <= LONGEST_CURSOR
    both = written_cursor("-measured", 1e9 / 3, f"{graph.name} on {cluster.name}")
    assert len(both) <= LONGEST_CURSOR


def test_what_is_no_sort_or_another_ones_cursor(sqlite: Database) -> None:
    for _ in range(3):
        enqueue(sqlite, small_request())
    with sqlite.reading() as session:
        with pytest.raises(InvalidInput, match="there is no sort 'colour'") as caught:
            reports.tunings(session, 5, None, TuningFilter(sort="colour"))
        assert "best_seconds" in caught.value.remedy
        page = reports.tunings(session, 1, None, TuningFilter(sort="created"))
        with pytest.raises(InvalidInput, match="sorted by 'created', not by '-created'"):
            reports.tunings(session, 1, page.next)


def found(database: Database, **wanted: object) -> list[str]:
    with database.reading() as session:
        only = TuningFilter(**{"archived": False, **wanted})  # type: ignore[arg-type]
        return [tuning.id for tuning in reports.tunings(session, 25, None, only).items]


def test_what_is_asked_for_is_found(database: Database) -> None:
    done = finished(database)
    waiting = [enqueue(database, small_request()) for _ in range(2)]
    write_notes(database, done, "paper 50%_a", "For the Talk")
    write_notes(database, waiting[0], "paper_b", "")
    assert found(database, sort="created") == [done, *waiting]
    assert found(database, state="queued", sort="created") == waiting
    assert found(database, tag="paper") == [done]
    assert found(database, tag="50%_a") == [done]
    assert found(database, tag="%") == found(database, tag="Paper") == []
    assert found(database, text="TALK chain") == [done]
    assert found(database, text="paper", sort="-speedup") == [done, waiting[0]]
    assert found(database, text=waiting[1][:10]) == [waiting[1]]
    with database.reading() as session:
        assert listed_tunings(session, TuningFilter())["places"] == {waiting[0]: 1, waiting[1]: 2}
        assert reports.tags(session) == ["50%_a", "paper", "paper_b"]
        assert reports.tunings(session, 1, None, TuningFilter(state="queued")).total == 2
    write_notes(database, done, archived=True)
    assert found(database, sort="created") == waiting
    assert found(database, archived=True) == [done]
    write_notes(database, done, archived=False)
    assert len(found(database)) == 3


def test_tunings_of_a_version_are_found_however_it_was_asked_for(sqlite: Database) -> None:
    store_versions(sqlite)
    asked = [replace(small_request(), simulator=name) for name in ("learned", "version-3")]
    ids = {enqueue(sqlite, request) for request in asked}
    enqueue(sqlite, replace(small_request(), simulator="version-2"))
    assert set(found(sqlite, simulator="version-3")) == ids


def test_words_that_are_no_ascii_are_found_however_they_are_written(sqlite: Database) -> None:
    """PostgreSQL does as its locale says."""
    tuning_id = enqueue(sqlite, small_request())
    write_notes(sqlite, tuning_id, "", "Übung im Büro")
    for words in ("Übung", "übung", "ÜBUNG büro"):
        assert found(sqlite, text=words) == [tuning_id], words


def test_what_cannot_be_written_is_refused(sqlite: Database) -> None:
    tuning_id = enqueue(sqlite, small_request())
    with pytest.raises(InvalidInput, match="11 tags"):
        write_notes(sqlite, tuning_id, " ".join(map(str, range(11))), "")
    with pytest.raises(InvalidInput, match="too long"):
        write_notes(sqlite, tuning_id, "x" * 41, "")
    with pytest.raises(InvalidInput, match="2001 characters"):
        write_notes(sqlite, tuning_id, "", "x" * 2001)
    with pytest.raises(NotFound):
        write_notes(sqlite, "0" * 32, "", "")
    with pytest.raises(NotSupported, match="cannot be archived"):
        write_notes(sqlite, tuning_id, archived=True)
    with pytest.raises(InvalidInput, match="asleep"):
        TuningFilter(state="asleep")
