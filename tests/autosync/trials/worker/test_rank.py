"""A rank meets the others in rank 0's store, or says where it looked for it."""

import socket
from datetime import timedelta

import pytest

from autosync.trials.worker import rank
from autosync.trials.worker.rank import opened_store


def test_a_store_that_is_not_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a firewall. Else the launcher ends the wait, and knows no reason."""
    monkeypatch.setattr(rank, "CONNECT_TIMEOUT", timedelta(seconds=1))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RuntimeError, match=rf"127\.0\.0\.1.*{port}"):
        opened_store("127.0.0.1", port, is_master=False)


def test_who_has_reached_it_waits_as_long_as_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "CONNECT_TIMEOUT", timedelta(seconds=1))
    store = opened_store("127.0.0.1", 0, is_master=True)
    other = opened_store("127.0.0.1", store.port, is_master=False)
    assert other.timeout == rank.GROUP_TIMEOUT  # type: ignore[attr-defined]
    other.set("met", "yes")
    assert store.get("met") == b"yes"
