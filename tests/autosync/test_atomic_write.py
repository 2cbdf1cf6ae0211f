"""Files that are replaced whole, by several writers at once."""

import os
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


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    file, link = tmp_path / "shared.json", tmp_path / "best.json"
    file.write_text("before")
    link.symlink_to(file)
    with replaced_atomically(link) as draft:
        draft.write_text("after")
    assert link.is_symlink()
    assert file.read_text() == "after"
    assert set(tmp_path.iterdir()) == {file, link}


def test_a_pipe_is_written_and_not_replaced(tmp_path: Path) -> None:
    """It stands for /dev/null and /dev/stdout, which whoever is root would lose."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with replaced_atomically(pipe) as draft:
            draft.write_text("answer")
        assert os.read(reading, 100) == b"answer"
    finally:
        os.close(reading)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_what_cannot_be_written_may_be_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "best.json"
    with (
        pytest.warns(UserWarning, match="best.json' could not be written: .*No such file"),
        warned_if_unwritten(path),
        replaced_atomically(path) as draft,
    ):
        draft.write_text("whole")
