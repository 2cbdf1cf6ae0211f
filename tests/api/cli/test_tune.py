"""A tuning on the command line: killed with -9 and resumed, explained, exported; and stopped."""

import json
import os
import signal
from pathlib import Path

import pytest
from sqlalchemy import func, select

from autosync.api.db.tables import EventRow, ProposalRow, TrialRow
from autosync.bundle import load_bundle
from autosync.search.loop.earlier_document import EarlierTrials
from autosync.search.loop.earlier_trials import read_earlier
from autosync.search.loop.outcome import is_ddp
from autosync.trials.pool.machine_lock import shared_machine_lock
from tests.api.cli.command import LONGEST_SECONDS, autosync, small_inputs, start
from tests.api.real_tuning import BUDGET, OPTIONS, TRIALS, RealTuning, stored, until_stored
from tests.waiting import until

pytestmark = pytest.mark.timeout(1500)


def test_killed_in_the_middle_and_resumed_it_repeats_no_finished_trial(
    real_tuning: RealTuning,
) -> None:
    before, after = real_tuning.before, stored(real_tuning.folder, TRIALS)
    assert 2 <= len(before) < len(after)
    assert after[: len(before)] == before
    keys = [key for key, *_ in after]
    assert len(set(keys)) == len(keys)
    assert sum(key.startswith("search/") for key in keys) == BUDGET
    with real_tuning.database() as database, database.reading() as session:
        rows = session.scalars(select(TrialRow).order_by(TrialRow.position)).all()
        assert session.scalar(select(func.count()).select_from(ProposalRow)) == len(rows)
        phases = list(session.scalars(select(EventRow.kind).order_by(EventRow.id)))
        whole = select(TrialRow.key).where(TrialRow.timeline.is_not(None))
        recorded = list(session.scalars(whole.order_by(TrialRow.position)))
    assert {row.fence for row in rows[: len(before)]} == {1}
    assert {row.fence for row in rows[len(before) :]} == {2}
    assert recorded == [row.key for row in rows if row.key.startswith("confirm/0/")]
    assert len(recorded) > 1
    assert phases[-1] == "done"


def test_it_says_that_links_are_unshaped_and_the_scales(real_tuning: RealTuning) -> None:
    assert "links are not shaped" in real_tuning.printed
    assert "Trials: all bytes, at full speed" in real_tuning.printed
    assert "an estimate" in real_tuning.printed


def test_the_bundle_and_the_two_lines_that_apply_it(real_tuning: RealTuning) -> None:
    shipped = load_bundle(real_tuning.folder / "mine.json")
    assert [variable.name for variable in shipped.variables] == [f"v{i}" for i in range(6)]
    assert "unshaped" in shipped.evidence.measured_on
    assert is_ddp(shipped.strategy) == ("keep torch's DDP" in real_tuning.printed)
    assert 'autosync.distribute(model, optimizer, "mine.json")' in real_tuning.printed


def test_where_measured_and_predicted_differ(real_tuning: RealTuning) -> None:
    folder, prefix = real_tuning.folder, real_tuning.id[:8]
    of_tuning = autosync(folder, "explain", prefix, "--trace", "trace.json").stdout
    as_json = autosync(folder, "explain", prefix, "--json").stdout
    assert json.loads(as_json) == json.loads((folder / "mine.json").read_text())
    for words in ("Measured", "Timeline predicted", "% of the limit", "GB a rank, predicted"):
        assert words in of_tuning
    assert "in trial confirm/0/" in of_tuning
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    names = {each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert {"predicted: rank 0", "measured: rank 0", "measured: rank 1"} <= names
    assert autosync(folder, "explain", "mine.json").stdout == of_tuning
    kept_ddp = "keep torch's DDP" in real_tuning.printed
    assert ("does not say when its messages travel" in of_tuning) == kept_ddp
    assert ("The messages that differ most" in of_tuning) != kept_ddp


def test_a_bundle_without_its_database_has_no_timeline(
    real_tuning: RealTuning, tmp_path: Path
) -> None:
    (tmp_path / "mine.json").write_text((real_tuning.folder / "mine.json").read_text())
    for database in ((), ("--db", "sqlite:///none.db")):
        assert "Timeline" not in autosync(tmp_path, "explain", "mine.json", *database).stdout
    output = autosync(tmp_path, "explain", "mine.json", "--trace", "trace.json", code=2).stderr
    assert "no timeline of mine.json" in output
    assert not (tmp_path / "autosync.db").exists()


def test_a_finished_tuning_is_exported_and_reported_again(real_tuning: RealTuning) -> None:
    folder, prefix = real_tuning.folder, real_tuning.id[:8]
    autosync(folder, "export", prefix, "-o", "again.json", "--trials", "trials.json")
    assert (folder / "again.json").read_text() == (folder / "mine.json").read_text()
    known = read_earlier(folder / "trials.json")
    assert isinstance(known, EarlierTrials)
    assert len(known.trials) == BUDGET
    before = stored(folder, TRIALS)
    found = json.loads(autosync(folder, "tune", "--resume", prefix, "--json").stdout)
    assert found["tuning"]["state"] == "finished"
    assert sum(each["is_ddp"] for each in found["strategies"]) == 1
    assert stored(folder, TRIALS) == before


def test_what_a_tuning_cannot_begin_or_go_on_from_is_refused(real_tuning: RealTuning) -> None:
    folder, prefix = real_tuning.folder, real_tuning.id[:8]
    begun = ("tune", "chain.json", "pair.yaml", *OPTIONS, "--from")
    for arguments, words in (
        ((*begun, prefix, "--resume", prefix), "--from begins another"),
        ((*begun, "none.json"), "none.json"),
        (("tune", "resnet50", "pair.yaml", "--resume", prefix), "another model"),
        (("tune", "--resume", prefix, "--budget", "9"), "budget is 9, and tuning"),
        (("tune", "--resume", prefix, "--no-probe"), "probe is False"),
        (("tune", "--resume", prefix, "--space", "fsdp2"), "space is fsdp2"),
        (("tune", "--resume", prefix, "--advanced", '{"alpha": 2}'), "alpha is 2.0"),
        (("tune", "chain.json", "--resume", prefix), "MODEL has no effect"),
        (("tune", "--resume", prefix, "--batch", "8"), "--batch has no effect"),
    ):
        assert words in autosync(folder, *arguments, code=2).stderr


def test_control_c_breaks_off_the_first_trial_and_says_how_to_go_on(tmp_path: Path) -> None:
    """An iteration of it takes an hour: the command does not wait for it, and records nothing."""
    slow = ("--step-seconds", "3600", "--no-probe", "-o", "my answer.json")
    process = start(tmp_path, "tune", *small_inputs(tmp_path), *OPTIONS, *slow)
    until_stored(tmp_path, process, "SELECT key FROM proposals", 1)
    process.send_signal(signal.SIGINT)
    _, output = process.communicate()
    assert process.returncode == 130, output
    ((tuning_id,),) = stored(tmp_path, "SELECT id FROM jobs")
    assert f"autosync tune --resume {tuning_id[:8]} -o 'my answer.json'" in output
    assert not stored(tmp_path, TRIALS)
    assert stored(tmp_path, "SELECT state FROM jobs") == [("queued",)]


def test_it_says_that_it_waits_for_another_measurement(tmp_path: Path) -> None:
    """This process holds the lock of the machine until the command has said so."""
    expected = f"waits for another measurement on this machine (pid {os.getpid()})"
    with shared_machine_lock().held():
        process = start(tmp_path, "tune", *small_inputs(tmp_path), *OPTIONS)
        try:
            until(lambda: expected in process.output()[1], "waiting", LONGEST_SECONDS)
            assert not stored(tmp_path, TRIALS)
        finally:
            process.kill()
