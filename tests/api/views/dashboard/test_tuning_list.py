"""Tunings as somebody looks for them, and what people write beside them."""

import pytest

from autosync.api.db import Database
from autosync.api.engine.submission import enqueue
from autosync.api.engine.tuning_control import archive, resume, write_notes
from autosync.api.views.dashboard.tuning_list import PAGE_SIZE, TuningFilter, tuning_list
from autosync.errors import InvalidInput, NotFound, NotSupported
from tests.api.sample import finished, small_request


def found(database: Database, **wanted: object) -> list[str]:
    with database.reading() as session:
        return [t.id for t in tuning_list(session, TuningFilter(**wanted)).items]  # type: ignore[arg-type]


def test_what_is_asked_for_is_found(database: Database) -> None:
    done = finished(database)
    waiting = [enqueue(database, small_request()) for _ in range(2)]
    write_notes(database, done, "paper 50%_a", "For the Talk")
    write_notes(database, waiting[0], "paper_b", "")
    assert found(database, sort="oldest") == [done, *waiting]
    assert found(database, state="queued", sort="oldest") == waiting
    assert found(database, tag="paper") == [done]
    assert found(database, tag="50%_a") == [done]
    assert found(database, tag="%") == []
    assert found(database, text="TALK chain") == [done]
    assert found(database, text="paper", sort="speed-up") == [done, waiting[0]]
    assert found(database, text=waiting[1][:10]) == [waiting[1]]
    with database.reading() as session:
        shown = tuning_list(session, TuningFilter())
    assert shown.places == {waiting[0]: 1, waiting[1]: 2}
    assert shown.tags == ["50%_a", "paper", "paper_b"]
    archive(database, done, True)
    assert found(database, sort="oldest") == waiting
    assert found(database, archived=True) == [done]
    archive(database, done, False)
    assert len(found(database)) == 3


def test_a_page_at_a_time(sqlite: Database) -> None:
    made = [enqueue(sqlite, small_request()) for _ in range(PAGE_SIZE + 2)]
    with sqlite.reading() as session:
        first = tuning_list(session, TuningFilter(sort="oldest"))
        second = tuning_list(session, TuningFilter(sort="oldest", page=2))
        none = tuning_list(session, TuningFilter(page=3))
    assert {tuning.id for tuning in first.items + second.items} == set(made)
    assert (first.total, first.pages, len(second.items), none.items) == (len(made), 2, 2, [])


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
        archive(sqlite, tuning_id, True)
    with pytest.raises(NotSupported, match="is queued"):
        resume(sqlite, tuning_id)
    with pytest.raises(InvalidInput, match="colour"):
        TuningFilter(sort="colour")
    with pytest.raises(InvalidInput, match="asleep"):
        TuningFilter(state="asleep")
