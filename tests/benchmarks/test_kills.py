"""Workers killed at random moments, on both databases: nothing lost, nothing twice, one answer.
`benchmarks.service.kills` does it a thousand times."""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import make_url

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
def test_killed_workers_lose_nothing(url: str) -> None:
    """In a process of its own, which forks its workers."""
    options = ("--kills", "50", "--workers", "3", "--db", url)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.service.kills", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("50 kills in ")
    assert make_url(url).get_backend_name() in done.stdout
    assert "every answer the same" in done.stdout
