"""`scripts/check_gpu`: every stage leaves what it should, without a GPU; and what fails or hangs
costs no other stage."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest

from benchmarks.gpu import knobs
from benchmarks.gpu.check_gpu import DEFAULT_MINUTES, NEEDED, chosen, missing_packages, run_stage
from benchmarks.gpu.stages import DATABASE, Setting, Stage, stages_of
from benchmarks.runtime.compiled_ddp import WAYS
from tests.waiting import lives, until

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_gpu"
NAMES = ["nccl-tests", "beside-ddp", "diagnosis", "knobs", "tuning", "memory", "profiles"]


def check_gpu(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "BACKEND": "gloo",
        "COMPUTE_DEVICE": "cpu",
        "PYTHON": sys.executable,
    }
    return subprocess.run(
        [str(SCRIPT), *arguments], env=environment, capture_output=True, text=True
    )


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_every_stage_leaves_its_results(tmp_path: Path) -> None:
    # Minutes for a busy machine: a tuning waits for other tests' measurements.
    done = check_gpu(str(tmp_path), "--minutes", "120")
    summary = read(tmp_path, "summary.json")
    assert [stage["stage"] for stage in summary["stages"]] == NAMES
    assert {stage["status"] for stage in summary["stages"]} == {"ok"}, done.stdout
    assert done.returncode == 0
    assert (summary["device"], summary["backend"]) == ("cpu", "gloo")
    assert "torch" in summary["machine"]
    for stage in summary["stages"]:
        assert all((tmp_path / name).stat().st_size for name in stage["files"]), stage

    suite = ElementTree.parse(tmp_path / "nccl-tests.xml").getroot().find("testsuite")
    assert suite is not None
    ran = int(suite.attrib["tests"]) - int(suite.attrib["skipped"])
    assert ran > 90
    assert (suite.attrib["failures"], suite.attrib["errors"]) == ("0", "0")

    rows = read(tmp_path, "beside-ddp.json")["rows"]
    assert {(row["ranks"], row["way"]) for row in rows} == {
        (ranks, way) for ranks in (1, 2) for way in ("alone", "DDP", "runtime, DDP's buckets")
    }
    assert all(row["host_ms"] > 0 and row["step_ms"] > 0 and row["ratio"] > 0 for row in rows)
    by_way = {row["way"]: row["bucket_bytes"] for row in rows}
    assert by_way["DDP"] == by_way["runtime, DDP's buckets"] != []
    assert "400 parameters" in (tmp_path / "beside-ddp.log").read_text()
    compiled = read(tmp_path, "beside-ddp-compiled.json")
    ways = {each["way"] for each in (*compiled["rows"], *compiled["left_out"])}
    assert ways >= {way.name for way in WAYS}

    rows = read(tmp_path, "knobs.json")["rows"]
    assert {row["way"] for row in rows} == set(knobs.WAYS)
    assert all(seconds > 0 for row in rows for seconds in row["milliseconds"].values())

    records = pq.read_table(tmp_path / "runtimes.parquet").to_pylist()
    assert len(records) >= 2
    assert all(record["error"] is None and record["step_seconds"] > 0 for record in records)
    assert all("kernels on the CPU" in record["launcher"] for record in records)

    rows = read(tmp_path, "memory.json")["rows"]
    assert [row["name"] for row in rows] == [
        "mobilenet_v2:1",
        "mobilenet_v2:1 zero1, rank 0",
        "mobilenet_v2:1 zero1, rank 1",
    ]
    assert all(0.5 < row["predicted_bytes"] / row["measured_bytes"] < 2 for row in rows)

    (measured,) = read(tmp_path, "profiles.json")["models"].values()
    assert measured["launch_gaps"] is None
    assert measured["profile"]["source"] == "measured"
    assert sum(each["share"] for each in measured["classes"]) == pytest.approx(1.0)


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path, "cuda", "nccl", "resnet50", "h100", 4, "auto")


def test_stages_take_what_the_default_allows_at_most(setting: Setting) -> None:
    stages = stages_of(setting)
    assert [stage.name for stage in stages] == NAMES
    assert sum(stage.seconds for stage in stages) <= 60 * DEFAULT_MINUTES
    assert [stage.name for stage in chosen(stages, "6,tuning")] == ["memory", "tuning"]
    with pytest.raises(SystemExit, match="no stage is called '8'"):
        chosen(stages, "8")


LOG = """\
host-1:71:80 [0] NCCL INFO Bootstrap: Using lo:127.0.0.1<0>
host-1:71:80 [0] NCCL INFO Comm config Max CTAs set to 4
host-1:71:80 [0] NCCL INFO 4 coll channels, 4 collnet channels, 0 nvls channels, 4 p2p channels
host-1:71:80 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..3}
host-1:71:80 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..3}
host-1:71:80 [0] NCCL INFO NCCL_ALGO set by environment to allreduce:tree
"""


def test_what_nccl_says_of_its_choices_is_kept() -> None:
    assert knobs.telling(LOG.splitlines()) == [
        "Comm config Max CTAs set to 4",
        "4 coll channels, 4 collnet channels, 0 nvls channels, 4 p2p channels",
        "AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..3}",
        "NCCL_ALGO set by environment to allreduce:tree",
    ]


def test_one_set_of_ranks_measures_all_limits_of_ctas() -> None:
    (none, together), *forced = knobs.by_environment(knobs.WAYS)
    assert none == {}
    assert next(iter(together)) == knobs.OWN
    assert len(together) > 2
    assert all(set(environment) == {"NCCL_ALGO", "NCCL_PROTO"} for environment, _ in forced)


def scripted(*programs: str, results: tuple[str, ...] = ()) -> Stage:
    commands = tuple((sys.executable, "-c", program) for program in programs)
    return Stage("scripted", "a test's", 60.0, commands, results)


HANGS = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import signal, time\\n"
    "signal.signal(signal.SIGINT, signal.SIG_IGN)\\ntime.sleep(3600)"])
pathlib.Path({file!r}).write_text(str(child.pid))
try:
    time.sleep(3600)
finally:
    print("written before leaving")
"""


def test_a_stage_that_hangs_is_told_to_leave_and_killed_with_all_it_started(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.gpu.check_gpu.LEAST_SECONDS", 0.0)
    file = setting.folder / "pid"
    outcome = run_stage(scripted(HANGS.format(file=str(file))), setting, 5.0)
    assert outcome.status == "stopped after 5 s"
    assert "written before leaving" in (setting.folder / "scripted.log").read_text()
    pid = int(file.read_text())
    until(lambda: not lives(pid), "the end of what it has started, which is killed by then")


def test_a_failed_or_silent_stage_is_named(setting: Setting) -> None:
    failed = run_stage(scripted("raise SystemExit(3)", "print('never')"), setting, 60.0)
    assert failed.status == "exit status 3"
    assert "never" not in (setting.folder / "scripted.log").read_text()
    silent = run_stage(scripted("print('nothing')", results=("found.json",)), setting, 60.0)
    assert silent.status == "it wrote no found.json"
    assert silent.files == ("scripted.log",)
    late = run_stage(scripted("print('late')"), setting, 1.0)
    assert late.status == "no time was left"


def test_a_tuning_that_made_no_tables_costs_no_other_stage(setting: Setting) -> None:
    begun = f"open({str(setting.folder / DATABASE)!r}, 'w')"
    killed = replace(scripted(begun, results=("runtimes.parquet",)), name="tuning")
    assert run_stage(killed, setting, 60.0).status == "it wrote no runtimes.parquet"


def test_trials_of_an_earlier_run_are_not_among_those_of_this_one(setting: Setting) -> None:
    for suffix in ("", "-wal"):
        (setting.folder / f"{DATABASE}{suffix}").touch()
    other = setting.folder / "autosync.db"  # of who runs the command line in this folder
    other.touch()
    run_stage(replace(scripted("pass"), name="tuning"), setting, 60.0)
    assert not list(setting.folder.glob(f"{DATABASE}*"))
    assert other.is_file()


def test_packages_that_are_missing_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_packages() == []
    monkeypatch.setitem(NEEDED, "left-out", "no_such_module_anywhere")
    assert missing_packages() == ["left-out"]
    assert check_gpu("--needs").stdout.split() == []
