"""Workers killed at random moments, on both databases: nothing lost, nothing twice, one answer.
`benchmarks.service.kills` does it a thousand times."""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.long_parameters import long_after

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("url", "kills", "workers"),
    long_after(
        1, [("sqlite", 5, 1), ("postgresql", 5, 1), ("sqlite", 50, 3), ("postgresql", 50, 3)]
    ),
    indirect=["url"],
)
def test_killed_workers_lose_nothing(url: str, kills: int, workers: int) -> None:
    """In a process of its own, which forks its workers."""
    options = ("--kills", str(kills), "--workers", str(workers), "--db", url)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.service.kills", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"{kills} kills in ")
    assert make_url(url).get_backend_name() in done.stdout
    assert "every answer the same" in done.stdout
