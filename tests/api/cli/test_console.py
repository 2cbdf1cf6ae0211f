"""Where logs lie."""

import tempfile
from pathlib import Path

import pytest

from autosync.api.cli.console import log_path


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
