"""Lists sorted by other things than time: whole and in order over pages, those without a value
last, on both databases."""

from typing import Any

import pytest

from autosync.api.db import Database
from autosync.api.engine.submission import enqueue
from autosync.api.views import reports, stored_documents
from autosync.errors import InvalidInput
from tests.api.sample import finished, small_request
from tests.api.views.test_paging import whole
from tests.domains import chain_graph, domain_of, grid_cluster


def rows_of(pages: list[list[Any]]) -> list[Any]:
    return [row for page in pages for row in page]


@pytest.mark.parametrize("name", reports.TUNING_SORTS)
def test_tunings(database: Database, name: str) -> None:
    done = [finished(database, small_request(budget)) for budget in (6, 7)]
    waiting = [enqueue(database, small_request()) for _ in range(2)]
    with database.reading() as session:

        def ids(sort: str) -> list[str]:
            pages = whole(lambda at: reports.tunings(session, 1, at, sort=sort))
            assert [len(page) for page in pages] == [1] * 4
            return [row.id for row in rows_of(pages)]

        up, down = ids(name), ids(f"-{name}")
        values = {row.id: row for row in reports.tunings(session, 10).items}
    assert sorted(up) == sorted(down) == sorted([*done, *waiting])
    if name == "created":
        assert down == up[::-1] == [*done, *waiting][::-1]
        return
    assert set(up[2:]) == set(down[2:]) == set(waiting)  # they have no such value
    assert up[:2] == down[:2][::-1]
    first, second = (values[each] for each in up[:2])
    if name == "speedup":
        assert first.result is not None
        assert second.result is not None
        assert first.result.speedup <= second.result.speedup


def test_trials(database: Database) -> None:
    tuning_id = finished(database)
    with database.reading() as session:
        for sort in ("step_seconds", "-step_seconds", "-position"):
            pages = whole(lambda at, s=sort: reports.trials(session, tuning_id, 4, at, s))  # type: ignore[misc]
            found = rows_of(pages)
            assert len({row.key for row in found}) == len(found) == 6 + 4 * 3
            if sort == "-position":
                assert [row.position for row in found] == list(range(18))[::-1]
                continue
            seconds = [row.step_seconds for row in found]
            assert seconds[-1] is None  # the one that failed
            measured = [each for each in seconds if each is not None]
            assert measured == sorted(measured, reverse=sort.startswith("-"))


def test_documents(database: Database) -> None:
    for nodes, width in ((2, 4), (3, 9), (4, 2)):
        graph = chain_graph(((width, width),))
        request = small_request()
        enqueue(database, type(request)(domain_of(graph, grid_cluster(nodes)), request.settings))
    with database.reading() as session:
        graphs = whole(lambda at: stored_documents.graphs(session, 1, at, "-parameters"))
        assert [row.parameters for row in rows_of(graphs)] == [81, 16, 4]
        clusters = whole(lambda at: stored_documents.clusters(session, 2, at, "world_size"))
        assert [row.world_size for row in rows_of(clusters)] == [2, 3, 4]


def test_what_is_no_sort_or_another_ones_cursor(sqlite: Database) -> None:
    for _ in range(3):
        enqueue(sqlite, small_request())
    with sqlite.reading() as session:
        with pytest.raises(InvalidInput, match="there is no sort 'colour'") as caught:
            reports.tunings(session, 5, sort="colour")
        assert "best_seconds" in caught.value.remedy
        page = reports.tunings(session, 1, sort="created")
        with pytest.raises(InvalidInput, match="sorted by 'created', not by '-created'"):
            reports.tunings(session, 1, page.next)
