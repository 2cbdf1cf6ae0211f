"""Files that are replaced whole, by several writers at once."""

from pathlib import Path

import pytest

from autosync.atomic_write import replaced_atomically, warned_if_unwritten


def test_two_writers_do_not_collide(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    with replaced_atomically(path) as first:
        first.write_text("first, " * 1000)
        with replaced_atomically(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first, " * 1000
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    path.write_text("before")

    def failing() -> None:
        with replaced_atomically(path) as draft:
            draft.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_may_be_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "best.json"
    with (
        pytest.warns(UserWarning, match="best.json' could not be written: .*No such file"),
        warned_if_unwritten(path),
        replaced_atomically(path) as draft,
    ):
        draft.write_text("whole")
