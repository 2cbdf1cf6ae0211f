"""Trained simulators from the command line: in, listed, used, and out again."""

import json
from pathlib import Path

from simulator.learned.models import LinearModel
from tests.api.test_simulators import checkpoint
from tests.cli.command import autosync, small_inputs


def test_a_simulator_is_kept_used_by_name_and_written_again(tmp_path: Path) -> None:
    card, weights = checkpoint(tmp_path, LinearModel())
    autosync(tmp_path, "simulator", "add", "mine", "made.safetensors")
    (listed,) = json.loads(autosync(tmp_path, "simulator", "list", "--json").stdout)
    assert (listed["name"], listed["kind"], listed["trials"]) == ("mine", "linear", 60)
    ranked = autosync(
        tmp_path, "rank", *small_inputs(tmp_path), "--proposals", "64", "--simulator", "mine"
    )
    assert "ddp" in ranked.stdout
    autosync(tmp_path, "simulator", "save", "mine", "-o", "copy.safetensors")
    assert (tmp_path / "copy.safetensors").read_bytes() == weights
    assert json.loads((tmp_path / "copy.json").read_text()) == json.loads(card)
    autosync(tmp_path, "simulator", "remove", "mine")
    gone = autosync(tmp_path, "rank", *small_inputs(tmp_path), "--simulator", "mine", code=2)
    assert "'mine'" in gone.stderr
    assert "Way out" in gone.stderr
