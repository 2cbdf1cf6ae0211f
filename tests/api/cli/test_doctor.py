"""`autosync doctor`, `--version` and one bundled model."""

import gzip
import json
import os
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autosync.api.cli.commands.doctor import Absent, _database
from autosync.api.cli.main import app
from autosync.api.db.schema_migration import migrate
from tests.api.cli.command import ROOT, autosync


def shown(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.output


def test_what_works_here_and_what_is_broken(tmp_path: Path) -> None:
    (tmp_path / "autosync.db").write_text("no database, but as long as a header of one is" * 9)
    told = autosync(tmp_path, "doctor", "--json", code=1).stdout
    found = {each["name"]: each for each in json.loads(told)}
    assert found["torch"]["verdict"] == found["gloo"]["verdict"] == "works"
    assert found["database"]["verdict"] == "broken"
    assert "--db" in found["database"]["remedy"]
    assert all(each["remedy"] for each in found.values() if each["verdict"] != "works")


def test_a_database_of_an_older_schema_is_to_be_upgraded(tmp_path: Path) -> None:
    stored = ROOT / "tests/migrations/database_0014.db.gz"
    (tmp_path / "autosync.db").write_bytes(gzip.decompress(stored.read_bytes()))
    told = autosync(tmp_path, "doctor", "--json", code=1).stdout
    (found,) = (each for each in json.loads(told) if each["name"] == "database")
    assert found["verdict"] == "broken"
    assert "schema revision 0014" in found["found"]
    assert "autosync db upgrade" in found["remedy"]


@pytest.mark.parametrize("denied", ["autosync.db", ""], ids=["file", "folder"])
def test_a_database_that_another_user_made_does_not_work(
    denied: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading it works, as after a first run as root; a tuning would be refused."""
    place, url = tmp_path / denied, f"sqlite:///{tmp_path}/autosync.db"
    migrate(url)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != place and access(path, mode))
    with pytest.raises(Absent) as absent:
        _database(url)
    assert str(absent.value) == f"{place} cannot be written"
    assert "--db" in absent.value.remedy


def test_the_version() -> None:
    assert shown("--version").split() == ["autosync", version("autosync")]


def test_one_bundled_model() -> None:
    words = shown("models", "resnet50")
    assert "161 variables" in words
    assert "fc.weight" in words
    assert len(json.loads(shown("models", "resnet50", "--json"))["variables"]) == 161
