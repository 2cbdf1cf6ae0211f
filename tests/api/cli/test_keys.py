"""`autosync keys`: the first key, before any service runs."""

import json
from pathlib import Path

import pytest

from autosync.api.engine.api_keys import KEY
from tests.api.cli.command import autosync


def test_keys_are_made_listed_and_revoked(tmp_path: Path) -> None:
    autosync(tmp_path, "db", "upgrade")
    made = autosync(tmp_path, "keys", "add", "alice", "--scope", "admin", "--days", "3")
    key = made.stdout.strip()
    assert KEY.fullmatch(key), "nothing else is printed there, so that a shell can take it"
    key_id = key.partition(".")[0]
    assert key_id in made.stderr
    assert key not in made.stderr
    listed = autosync(tmp_path, "keys", "list")
    assert key_id in listed.stdout
    assert "alice" in listed.stdout
    assert "until" in listed.stdout
    autosync(tmp_path, "keys", "revoke", key_id)
    (shown,) = json.loads(autosync(tmp_path, "keys", "list", "--json").stdout)
    assert shown["revoked_at"] is not None
    assert "digest" not in shown


def test_a_clients_key_is_no_token_of_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    autosync(tmp_path, "db", "upgrade")
    key = autosync(tmp_path, "keys", "add", "alice", "--scope", "read").stdout.strip()
    monkeypatch.setenv("AUTOSYNC_TOKEN", key)
    refused = autosync(tmp_path, "serve", code=2).stderr
    assert "is a key of some database" in " ".join(refused.split())
    assert key not in refused
