"""A tuning on the command line: killed with -9 in the middle, resumed, explained, exported."""

import json
import os
import signal
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from autosync.bundle import load_bundle
from autosync.search.loop.earlier_trials import EarlierTrials, read_earlier
from autosync.trials.pool.machine_lock import shared_machine_lock
from tests.api.cli.command import LONGEST_SECONDS, autosync, small_inputs, start

pytestmark = pytest.mark.timeout(1500)
BUDGET, REPEATS = 4, 2
OPTIONS = (
    *("--budget", str(BUDGET), "--repeats", str(REPEATS), "--proposals", "100"),
    *("--launcher", "local", "--byte-scale", "1", "--time-scale", "1"),
)
Trial = tuple[str, float]


def trials(folder: Path) -> list[Trial]:
    """(key, when it was recorded) of finished trials, oldest first."""
    return stored(folder, "SELECT key, created_at FROM trials ORDER BY position")


def proposals(folder: Path) -> list[tuple[str]]:
    """The keys of trials that are due."""
    return stored(folder, "SELECT key FROM proposals")


def stored(folder: Path, query: str) -> list[Any]:
    """Nothing where the database is not there yet."""
    database = folder / "autosync.db"
    if not database.exists():
        return []
    with sqlite3.connect(database, timeout=30) as connection:
        try:
            return connection.execute(query).fetchall()
        except sqlite3.OperationalError:  # the migrations have not run yet
            return []


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Trial]]:
    """A folder in which a tuning was killed after its second trial; its finished trials."""
    folder = tmp_path_factory.mktemp("tune")
    process = start(folder, "tune", *small_inputs(folder), *OPTIONS)
    deadline = time.monotonic() + LONGEST_SECONDS
    while len(trials(folder)) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    return folder, trials(folder)


@pytest.fixture(scope="module")
def resumed(killed: tuple[Path, list[Trial]]) -> tuple[Path, str, str]:
    """The folder, what the resumed command printed, and the id."""
    folder, _ = killed
    with sqlite3.connect(folder / "autosync.db") as connection:
        ((tuning_id,),) = connection.execute("SELECT id FROM tunings").fetchall()
    arguments = ("tune", "chain.json", "pair.yaml", *OPTIONS, "--resume", tuning_id[:8])
    done = autosync(folder, *arguments, "-o", "mine.json")
    return folder, done.stdout + done.stderr, tuning_id


def test_killed_in_the_middle_and_resumed_it_repeats_no_finished_trial(
    killed: tuple[Path, list[Trial]], resumed: tuple[Path, str, str]
) -> None:
    folder, before = killed
    after = trials(folder)
    assert 2 <= len(before) < len(after)
    assert after[: len(before)] == before
    keys = [key for key, _ in after]
    assert len(set(keys)) == len(keys)
    assert sum(key.startswith("search/") for key in keys) == BUDGET


def test_it_says_that_links_are_unshaped_and_the_scales(resumed: tuple[Path, str, str]) -> None:
    _, output, _ = resumed
    assert "links are not shaped" in output
    assert "Byte scale 1 (all bytes), time scale 1" in output
    assert "an estimate" in output


def test_the_bundle_and_the_two_lines_that_apply_it(resumed: tuple[Path, str, str]) -> None:
    folder, output, _ = resumed
    shipped = load_bundle(folder / "mine.json")
    assert [variable.name for variable in shipped.variables] == [f"v{i}" for i in range(6)]
    assert "unshaped" in shipped.evidence.measured_on
    assert 'autosync.distribute(model, optimizer, "mine.json")' in output
    assert "Measured" in autosync(folder, "explain", "mine.json").stdout


def test_where_measured_and_predicted_differ(resumed: tuple[Path, str, str]) -> None:
    folder, _, tuning_id = resumed
    of_tuning = autosync(folder, "explain", tuning_id[:8], "--trace", "trace.json").stdout
    as_json = autosync(folder, "explain", tuning_id[:8], "--json").stdout
    assert json.loads(as_json) == json.loads((folder / "mine.json").read_text())
    assert "Timeline predicted" in of_tuning
    assert "% of the limit" in of_tuning
    assert "GB a rank, predicted" in of_tuning
    assert "in trial confirm/0/" in of_tuning
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    names = {each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert {"predicted: rank 0", "measured: rank 0", "measured: rank 1"} <= names
    of_bundle = autosync(folder, "explain", "mine.json").stdout
    assert of_bundle == of_tuning
    kept_ddp = "keep torch's DDP" in " ".join(resumed[1].split())
    assert ("does not say when its messages travel" in of_bundle) == kept_ddp
    assert ("The messages that differ most" in of_bundle) != kept_ddp


def test_a_bundle_without_its_database_has_no_timeline(
    resumed: tuple[Path, str, str], tmp_path: Path
) -> None:
    folder, _, _ = resumed
    (tmp_path / "mine.json").write_text((folder / "mine.json").read_text())
    assert "Timeline" not in autosync(tmp_path, "explain", "mine.json").stdout
    output = autosync(tmp_path, "explain", "mine.json", "--trace", "trace.json", code=2).stderr
    assert "no timeline of mine.json" in output
    assert not (tmp_path / "autosync.db").exists()


def test_a_finished_tuning_is_exported_and_reported_again(resumed: tuple[Path, str, str]) -> None:
    folder, _, tuning_id = resumed
    autosync(folder, "export", tuning_id[:8], "-o", "again.json")
    assert (folder / "again.json").read_text() == (folder / "mine.json").read_text()
    count = len(trials(folder))
    done = autosync(folder, "tune", "--resume", tuning_id[:8], "--json")
    found = json.loads(done.stdout)
    assert found["tuning"]["state"] == "finished"
    assert sum(each["is_ddp"] for each in found["strategies"]) == 1
    assert len(trials(folder)) == count


def test_another_tuning_begins_from_what_this_one_measured(
    resumed: tuple[Path, str, str], tmp_path: Path
) -> None:
    folder, _, tuning_id = resumed
    autosync(folder, "export", tuning_id[:8], "-o", "again.json", "--trials", "trials.json")
    known = read_earlier(folder / "trials.json")
    assert isinstance(known, EarlierTrials)
    assert len(known.trials) == BUDGET
    with (
        sqlite3.connect(folder / "autosync.db") as here,
        sqlite3.connect(tmp_path / "autosync.db") as there,
    ):
        here.backup(there)
    arguments = ("tune", *small_inputs(tmp_path), *OPTIONS)
    both = (*arguments, "--from", tuning_id[:8], "--resume", tuning_id[:8])
    assert "--from begins another" in autosync(tmp_path, *both, code=2).stderr
    autosync(tmp_path, *arguments, "--from", tuning_id[:8], "-o", "second.json")
    query = "SELECT strategy_id, round, phase FROM proposals WHERE tuning_id <> ? ORDER BY position"
    with sqlite3.connect(tmp_path / "autosync.db") as connection:
        rows = connection.execute(query, (tuning_id,)).fetchall()
    canaries = [identity for identity, number, phase in rows if (number, phase) == (0, "search")]
    assert set(canaries) == {trial.strategy.id for trial in known.trials}
    missing = autosync(tmp_path, *arguments, "--from", "none.json", code=2).stderr
    assert "none.json" in missing


def test_resuming_with_another_model_is_refused(resumed: tuple[Path, str, str]) -> None:
    folder, _, tuning_id = resumed
    arguments = ("tune", "resnet50", "pair.yaml", "--resume", tuning_id[:8])
    assert "another model" in autosync(folder, *arguments, code=2).stderr


def test_control_c_says_how_to_go_on_and_loses_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, "tune", *small_inputs(tmp_path), *OPTIONS)
    deadline = time.monotonic() + LONGEST_SECONDS
    while not trials(tmp_path) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=LONGEST_SECONDS)
    assert process.returncode == 130, output
    assert "autosync tune --resume" in output
    with sqlite3.connect(tmp_path / "autosync.db") as connection:
        assert connection.execute("SELECT state FROM tunings").fetchall() == [("queued",)]


def test_the_first_trial_is_broken_off(tmp_path: Path) -> None:
    """An iteration of it takes an hour: the command does not wait for it, and records nothing."""
    slow = ("--step-seconds", "3600", "--no-probe")
    process = start(tmp_path, "tune", *small_inputs(tmp_path), *OPTIONS, *slow)
    deadline = time.monotonic() + LONGEST_SECONDS
    while not proposals(tmp_path) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=LONGEST_SECONDS)
    assert process.returncode == 130, output
    assert "autosync tune --resume" in output
    assert not trials(tmp_path)
    with sqlite3.connect(tmp_path / "autosync.db") as connection:
        assert connection.execute("SELECT state FROM tunings").fetchall() == [("queued",)]


def test_it_says_that_it_waits_for_another_measurement(tmp_path: Path) -> None:
    """This process holds the lock of the machine until the command has said so."""
    expected = f"waits for another measurement on this machine (pid {os.getpid()})"
    with shared_machine_lock().held(threading.Event()):
        process = start(tmp_path, "tune", *small_inputs(tmp_path), *OPTIONS)
        try:
            assert process.stderr is not None
            assert any(expected in line for line in process.stderr)
            assert not trials(tmp_path)
        finally:
            process.kill()
            process.communicate()
