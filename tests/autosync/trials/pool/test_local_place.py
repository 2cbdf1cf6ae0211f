"""What a trial process is started with."""

import queue
from pathlib import Path

import pytest

from autosync.environment import PASSED_VARIABLE, allowed_environment
from autosync.trials.pool.fork_server import ForkServer
from autosync.trials.pool.local_place import LocalPlace

SECRETS = ("AUTOSYNC_TOKEN", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "SLURM_JWT")
"""The last is of a family that is allowed."""


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SECRETS, "NCCL_DEBUG", "MY_SETTING"):
        monkeypatch.setenv(name, "hidden")
    monkeypatch.setenv("AUTOSYNC_DATABASE_URL", "postgresql://tuner:hidden@db/autosync")
    monkeypatch.setenv(PASSED_VARIABLE, "MY_SETTING, NOT_THERE")


@pytest.mark.parametrize("preload", [None, ForkServer()], ids=["started", "forked"])
def test_a_trial_process_gets_no_secret(names: None, preload: ForkServer | None) -> None:
    worker = LocalPlace((), "lo", 0, preload=preload).start(0, (), queue.Queue())
    try:
        entries = Path(f"/proc/{worker.pid}/environ").read_bytes().split(b"\0")
    finally:
        worker.kill()
        if preload is not None:
            preload.close()
    given = {entry.partition(b"=")[0].decode() for entry in entries}
    assert {"PATH", "NCCL_DEBUG", "MY_SETTING"} <= given
    assert not given & {*SECRETS, "AUTOSYNC_DATABASE_URL"}


def test_a_secret_is_passed_where_it_is_named(names: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "PGPASSWORD" in allowed_environment(["PG*"])
    assert "SLURM_JWT" not in allowed_environment(["PG*"])
    monkeypatch.setenv(PASSED_VARIABLE, "SLURM_JWT")
    assert "SLURM_JWT" in allowed_environment()
