"""`autosync quickstart`: its dashboard at the end."""

import socket
from pathlib import Path

import pytest

from autosync.api.cli.commands.quickstart import keep_dashboard
from autosync.errors import InvalidInput


def test_a_port_that_is_taken_does_not_ask_for_another_tuning(tmp_path: Path) -> None:
    """As by the dashboard of the quickstart before."""
    url = f"sqlite:///{tmp_path}/own.db"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"cannot listen on .*:{port}") as refused:
            keep_dashboard(port, url)
    assert f"autosync serve --port PORT --db {url}" in refused.value.remedy
