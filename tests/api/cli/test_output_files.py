"""Results that cannot be written: found before the work, never lost after it. Where logs lie."""

import logging
import resource
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from autosync.api.cli import console
from autosync.api.cli.commands import tune
from autosync.api.cli.connection import connected
from autosync.api.cli.console import log_path, log_to_file
from autosync.api.cli.output_files import check_writable
from autosync.api.db import Database
from autosync.errors import InvalidInput
from tests.api.sample import finished

READ_ONLY = Path("/sys/best.json")
"""Nobody makes files there, not even root."""


def test_an_output_is_tried_before_the_work(tmp_path: Path) -> None:
    check_writable(tmp_path / "best.json")
    assert list(tmp_path.iterdir()) == []
    for path, why in (
        (READ_ONLY, "cannot write"),
        (tmp_path, "it is a folder"),
        (tmp_path / "nowhere" / "best.json", "no such folder"),
    ):
        with pytest.raises(InvalidInput, match=why):
            check_writable(path)


def test_an_output_may_be_no_file() -> None:
    """Where only what is printed is wanted."""
    check_writable(Path("/dev/null"))


def test_an_output_on_a_full_disk(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: both take the name and not the content."""
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(InvalidInput, match="cannot write"):
            check_writable(tmp_path / "best.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_an_answer_that_cannot_be_written_is_printed(
    sqlite_url: str, sqlite: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    tuning_id = finished(sqlite)
    with connected(sqlite_url, None) as at, pytest.raises(InvalidInput) as caught:
        tune.report(at.client, tuning_id, READ_ONLY, top=12, json=False)
    assert f"autosync export {tuning_id[:8]} -o FILE" in caught.value.remedy
    assert "Measured on: testbed (4 nodes)" in capsys.readouterr().out


def test_logs_lie_in_the_users_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert log_path("tune").parent == tmp_path / "autosync"


@pytest.mark.parametrize("state", ["/sys/state", "/dev/null/state"])
def test_logs_lie_with_temporary_files_where_that_folder_cannot_be_made(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody makes folders there, not even root: as in a home that is read-only."""
    monkeypatch.setenv("XDG_STATE_HOME", state)
    assert log_path("tune").parent == Path(tempfile.gettempdir())


def log_of_tune(monkeypatch: pytest.MonkeyPatch) -> tuple[Path, logging.Handler]:
    """As `autosync tune` begins it, taken off again."""
    monkeypatch.setattr(logging, "raiseExceptions", True)
    root = logging.getLogger()
    level = root.level
    path = log_to_file("tune")
    handler = root.handlers[-1]
    root.removeHandler(handler)
    root.setLevel(level)
    return path, handler


def test_a_log_on_a_full_disk_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "log_path", lambda kind: Path("/dev/full"))
    _, handler = log_of_tune(monkeypatch)
    handler.emit(logging.makeLogRecord({"msg": "claimed"}))
    with suppress(OSError):
        handler.close()
    assert capsys.readouterr().err == ""


def test_a_log_takes_names_in_any_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file whose name is no text, for instance."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path, handler = log_of_tune(monkeypatch)
    handler.emit(logging.makeLogRecord({"msg": "net\udce4 r\u00e9sum\u00e9"}))
    handler.close()
    assert "net\\udce4 r\u00e9sum\u00e9" in path.read_text(encoding="utf-8")
