"""Workers killed a hundred times at random moments: nothing lost, nothing twice, one answer."""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import make_url

ROOT = Path(__file__).resolve().parents[2]
KILLS = 100


@pytest.mark.timeout(900)
def test_a_hundred_kills_on_each_database_lose_nothing(url: str) -> None:
    """In a process of its own, which forks its workers."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.service.kills", "--kills", str(KILLS), "--db", url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"{KILLS} kills in ")
    assert make_url(url).get_backend_name() in done.stdout
    assert "every answer the same" in done.stdout
