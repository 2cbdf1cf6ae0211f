"""`autosync doctor` and `--version`: what is here, tried."""

import json
from importlib.metadata import version
from pathlib import Path

from autosync.trials.testbed import namespaces
from tests.api.cli.command import autosync


def test_what_works_here_and_what_is_broken(tmp_path: Path) -> None:
    beds = namespaces.status()
    found = {
        each["name"]: each for each in json.loads(autosync(tmp_path, "doctor", "--json").stdout)
    }
    assert found["torch"]["verdict"] == found["gloo"]["verdict"] == "works"
    assert "made by the first" in found["database"]["found"]
    assert all(each["remedy"] for each in found.values() if each["verdict"] != "works")
    assert {each.id for each in namespaces.status()} <= {each.id for each in beds}
    assert not (tmp_path / "autosync.db").exists()
    (tmp_path / "autosync.db").write_text(
        "no database at all, but as long as a header of one is" * 9
    )
    table = autosync(tmp_path, "doctor", code=1).stdout
    assert "broken" in table
    assert "--db" in table


def test_the_version(tmp_path: Path) -> None:
    assert autosync(tmp_path, "--version").stdout.split() == ["autosync", version("autosync")]


def test_one_bundled_model(tmp_path: Path) -> None:
    shown = autosync(tmp_path, "models", "resnet50").stdout
    assert "161 variables" in shown
    assert "fc.weight" in shown
    graph = json.loads(autosync(tmp_path, "models", "resnet50", "--json").stdout)
    assert len(graph["variables"]) == 161
    assert "resnet50" in autosync(tmp_path, "models", "resnet5", code=2).stderr
