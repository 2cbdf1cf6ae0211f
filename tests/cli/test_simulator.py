"""Trained simulators from the command line: in, listed, used, and out again."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.cli.inputs import load_simulator
from api.cli.simulator import app
from autosync.errors import NotFound
from simulator.learned.models import LinearModel
from tests.api.test_simulators import checkpoint
from tests.domains import domain_of


def test_a_simulator_is_kept_found_by_name_and_written_again(tmp_path: Path) -> None:
    domain = domain_of()
    card, weights = checkpoint(tmp_path, LinearModel())
    db = f"sqlite:///{tmp_path / 'a.db'}"

    def said(*words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--db", db], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    with pytest.raises(NotFound, match="'mine'"):
        load_simulator("mine", db, domain)
    said("add", "mine", str(tmp_path / "made.safetensors"))
    (listed,) = json.loads(said("list", "--json"))
    assert (listed["name"], listed["kind"], listed["trials"]) == ("mine", "linear", 60)
    assert json.loads(said("show", "mine")) == json.loads(card)
    assert load_simulator("nearest", db, domain).name == "timeline+linear"
    said("save", "mine", "-o", str(tmp_path / "copy.safetensors"))
    assert (tmp_path / "copy.safetensors").read_bytes() == weights
    assert json.loads((tmp_path / "copy.json").read_text()) == json.loads(card)
    said("remove", "mine")
    with pytest.raises(NotFound) as gone:
        load_simulator("mine", db, domain)
    assert "timeline" in gone.value.remedy
