"""A record names processes that are killed: only those of this user's own folder are believed."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from autosync.errors import InvalidInput, NotSupported
from autosync.trials.machine import process_start
from autosync.trials.testbed import namespaces
from autosync.trials.testbed.namespaces import Testbed
from tests.domains import grid_cluster


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where testbeds are recorded in these tests; not there yet."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / f"autosync-testbeds-{os.geteuid()}"


def test_a_planted_record_kills_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda process, _: killed.append(process))
    mine = os.getpid(), process_start(os.getpid()) or ""
    nobody = mine[0], "0"
    planted = Testbed("planted", "c", 1.0, 1.0, ("10.77.0.1",), mine, nobody, False, "unshaped")
    namespaces._record_path("planted").write_text(json.dumps(asdict(planted)))
    with pytest.raises(InvalidInput, match=f"process {mine[0]}, .* testbed planted"):
        namespaces.remove_stale()
    assert killed == []


def shared_with_others(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o750)


@pytest.mark.parametrize(
    "make", [shared_with_others, Path.touch, lambda folder: folder.symlink_to(folder.parent)]
)
def test_no_private_folder_of_its_own_is_refused(
    folder: Path, make: Callable[[Path], None]
) -> None:
    make(folder)
    with pytest.raises(InvalidInput, match=str(folder)):
        namespaces.status()


def test_the_folder_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with pytest.raises(InvalidInput, match=rf"testbeds-{own + 1}.* \(drwx------, owner {own}\)"):
        namespaces.status()


def test_the_folder_is_made_for_this_user_alone(folder: Path) -> None:
    assert namespaces.status() == ()
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("user", "words"), [(0, "SYS_ADMIN"), (1000, "Run as root")])
def test_what_would_allow_a_testbed_is_told_to_its_user(
    user: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(namespaces, "remove_stale", lambda: ())  # the folder is the real user's
    monkeypatch.setattr("shutil.which", lambda tool: None)
    with pytest.raises(NotSupported, match=r"'ip' is not installed") as refused:
        namespaces.up(grid_cluster(2))
    assert words in refused.value.remedy
    assert ("as root" in refused.value.remedy) == (user != 0)
