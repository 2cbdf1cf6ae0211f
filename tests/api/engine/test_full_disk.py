"""No room for results: what was recorded stays, and the tuning goes on when there is room again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]


def unshare() -> list[str]:
    """A mount namespace, with the rights to mount in it."""
    return ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    probe = [*unshare(), "mount", "-t", "tmpfs", "autosync", str(tmp_path)]
    found = subprocess.run(probe, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"NO MOUNT NAMESPACES HERE, the full disk is not tested: {found.stderr}")
    return tmp_path


def test_a_full_disk_costs_the_trial_at_hand(small_disk: Path) -> None:
    command = [*unshare(), sys.executable, "-m", "tests.api.engine.full_disk", str(small_disk)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert found.returncode == 0, found.stderr
    outcome = json.loads(found.stdout)
    assert len(outcome["recorded"]) >= 2
    assert outcome["after"][: len(outcome["recorded"])] == outcome["recorded"]
    keys = [key for key, _ in outcome["after"]]
    assert len(keys) == len(set(keys)) == outcome["proposed"]
