"""Tunings listed, shown, followed and cancelled: of a database, and of a service over the same."""

import json
import shutil
import socket
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import inspect, select
from typer.testing import CliRunner

from autosync.api.cli.console import between_ms
from autosync.api.cli.main import app
from autosync.api.db import Database
from autosync.api.db.document_store import load_domain
from autosync.api.db.tables import OutcomeRow, StrategyRow, TuningRow
from autosync.api.engine import job_queue
from autosync.api.engine.submission import enqueue
from autosync.api.views.prediction_errors import FEWEST_MEASURED
from autosync.bundle import Evidence, load_bundle
from autosync.documents import from_json, to_json
from autosync.extensions.offload.document import Offload
from autosync.nccl_knobs import NcclKnobs, NcclRange
from autosync.search.loop.earlier_document import EarlierTrials
from autosync.search.loop.earlier_trials import read_earlier
from autosync.search.space import SPACES
from autosync.simulator.explanation import explain
from autosync.strategy import Strategy
from tests.api.cli.command import completed
from tests.api.databases import opened
from tests.api.http.serving import served
from tests.api.sample import (
    claimed,
    confirming_without_ddp,
    finished,
    finished_without_ddp,
    run_search,
    small_request,
)

WIDE = {"COLUMNS": "200"}


@pytest.fixture(scope="module")
def finished_once(
    sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """A database with a finished tuning, and the tuning's id."""
    file = tmp_path_factory.mktemp("finished") / "one.db"
    shutil.copy(sqlite_template, file)
    with opened(f"sqlite:///{file}") as database:
        return file, finished(database, small_request())


@pytest.fixture
def tuning_id(finished_once: tuple[Path, str]) -> str:
    return finished_once[1]


@pytest.fixture
def sqlite_url(finished_once: tuple[Path, str], tmp_path: Path) -> str:
    """Each test has its own copy."""
    shutil.copy(finished_once[0], tmp_path / "test.db")
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture
def db(sqlite_url: str) -> tuple[str, str]:
    return "--db", sqlite_url


@pytest.fixture(params=["--db", "--url"])
def source(request: pytest.FixtureRequest, sqlite_url: str) -> Iterator[tuple[str, str]]:
    """The option that names where the tunings of `sqlite` are."""
    if request.param == "--db":
        yield "--db", sqlite_url
        return
    with served(sqlite_url) as service:
        yield "--url", service.address


def run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, arguments, env=WIDE)
    assert done.exit_code == code, done.output
    return done.output


def refused(*arguments: str) -> str:
    return str(CliRunner().invoke(app, arguments, env=WIDE).exception)


def test_a_strategy_is_exported_by_the_id_that_show_prints(
    db: tuple[str, str], tuning_id: str, tmp_path: Path
) -> None:
    ranked = json.loads(run("show", tuning_id[:8], *db, "--json"))["strategies"]
    second = ranked[1]["strategy_id"]
    table = run("show", tuning_id[:8], *db)
    assert second[:8] in table
    file = tmp_path / "second.json"
    run("export", tuning_id[:8], *db, "--strategy", second[:8], "-o", str(file))
    assert load_bundle(file).strategy.id == second
    settings = run("export", tuning_id[:8], *db, "--strategy", second[:8], "--for", "autosync")
    assert second[:8] in settings
    for wrong, words in (("ffffffff0", "no strategy here"), (second[:3], "no strategy here")):
        said = refused("export", tuning_id[:8], *db, "--strategy", wrong)
        assert words in said
        assert "`autosync show` lists them" in said


def test_trials_alone_leave_the_bundle_of_another_tuning_as_it_is(
    source: tuple[str, str],
    sqlite: Database,
    tuning_id: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tuning without an answer has trials, too."""
    monkeypatch.chdir(tmp_path)
    run("export", tuning_id[:8], *source)
    bundle = Path("best.json").read_text()
    waiting = enqueue(sqlite, small_request())
    for tuning in (tuning_id, waiting):
        run("export", tuning[:8], *source, "--trials", "trials.json")
        known = read_earlier(Path("trials.json"))
        assert isinstance(known, EarlierTrials)
        assert bool(known.trials) == (tuning == tuning_id)
        assert Path("best.json").read_text() == bundle


def test_predictions_have_intervals_once_these_are_known(
    source: tuple[str, str], sqlite: Database
) -> None:
    many = finished(sqlite, small_request(budget=FEWEST_MEASURED + 3))
    few = finished(sqlite, small_request(budget=4))
    lines = run("show", many[:8], *source, "--top", "99").splitlines()
    for each in json.loads(run("show", many[:8], *source, "--json"))["strategies"]:
        (place,) = [i for i, line in enumerate(lines) if each["strategy_id"][:8] in line]
        assert between_ms(each["low_seconds"], each["high_seconds"]) in lines[place + 1]
    assert "nine of ten measurements" not in run("show", few[:8], *source)


def test_a_curve_of_bucket_sizes(source: tuple[str, str], sqlite: Database) -> None:
    tuning_id = finished(sqlite, small_request(space=SPACES["buckets"]))
    data = json.loads(run("show", tuning_id[:8], *source, "--json"))
    assert data["tuning"]["space"] == "buckets"
    sizes = [each["bucket_cap_mb"] for each in data["bucket_curve"]]
    assert sizes == sorted(sizes)
    assert len(sizes) == len(data["strategies"]) > 2
    table = run("show", tuning_id[:8], *source)
    assert "bucket_cap_mb" in table
    assert "25 (default)" in table
    answer = data["tuning"]["result"]["strategy_id"]
    (best,) = (each for each in data["bucket_curve"] if each["strategy_id"] == answer)
    assert f"model = {best['code']}" in table
    assert best["code"] in run("export", tuning_id[:8], *source, "--for", "ddp")


def test_speed_ups_over_another_design_than_ddp_say_so(
    db: tuple[str, str], sqlite: Database
) -> None:
    done = finished_without_ddp(sqlite, small_request())
    confirming = confirming_without_ddp(sqlite, small_request())
    answer = json.loads(run("show", done, *db, "--json"))["tuning"]["result"]
    (line,) = [each for each in run("tunings", *db).splitlines() if done[:8] in each]
    assert f"{answer['speedup']:.2f} over {answer['baseline']}" in line
    rows = json.loads(run("show", confirming, *db, "--json"))["strategies"]
    (base,) = [each["origin"] for each in rows if each["is_baseline"]]
    assert base != "ddp"
    assert f"speed-up over {base}" in run("show", confirming, *db)


def test_the_limit_that_explain_states_is_the_tunings(
    db: tuple[str, str], sqlite: Database, tuning_id: str, tmp_path: Path
) -> None:
    """Strategies that the space allows beyond the exact ones have a lower limit."""
    run("export", tuning_id, *db, "-o", str(tmp_path / "best.json"))
    with sqlite.writing() as session:
        domain = load_domain(session, session.get_one(TuningRow, tuning_id).domain_id)
        found = explain(domain, load_bundle(tmp_path / "best.json").strategy)
        session.get_one(OutcomeRow, tuning_id).limit_seconds = 0.25 * found.step_seconds
    assert "; 25 % of the limit" in run("explain", tuning_id, *db)


def test_a_shell_completes_ids(
    sqlite: Database, tuning_id: str, sqlite_url: str, tmp_path: Path
) -> None:
    waiting = enqueue(sqlite, small_request(budget=7))
    there = ("--db", sqlite_url)
    shown, explained, strategies, *nothing = completed(
        tmp_path,
        ("show", *there, ""),
        ("explain", *there, tuning_id[:5]),
        ("export", tuning_id[:8], *there, "--strategy", ""),
        ("show", "--db", f"sqlite:///{tmp_path}/none.db", ""),
        ("show", "--db", "postgresql://host/name", ""),
    )
    assert shown == [waiting[:8], tuning_id[:8]]
    assert explained == [tuning_id[:8]]
    ranked = json.loads(run("show", tuning_id[:8], *there, "--json"))["strategies"]
    assert {each["strategy_id"][:12] for each in ranked} <= {*strategies}
    assert nothing == [[], []]


def test_a_finished_and_a_waiting_tuning(
    source: tuple[str, str], sqlite: Database, tuning_id: str
) -> None:
    waiting = enqueue(sqlite, small_request(budget=7))
    listed = json.loads(run("tunings", *source, "--json"))
    assert [each["id"] for each in listed] == [waiting, tuning_id]
    assert len(json.loads(run("tunings", *source, "--json", "--last", "1"))) == 1
    table = run("tunings", *source)
    assert tuning_id[:8] in table
    assert "queued" in table
    shown = run("show", tuning_id[:8], *source)
    assert tuning_id in shown
    assert "torch's DDP" in shown
    assert "testbed (4 nodes)" in shown
    assert json.loads(run("show", tuning_id[:8], *source, "--json"))["tuning"]["id"] == tuning_id
    said = run("logs", tuning_id[:8], *source, "--follow")  # it has ended: nothing to wait for
    assert "ranking proposals, round 1 (30000 of 30000)" in said
    assert "finished" in said.splitlines()[-1]
    assert "cancelled" in run("cancel", waiting[:8], *source)
    assert json.loads(run("tunings", *source, "--json"))[0]["state"] == "cancelled"
    assert "finished already" in refused("cancel", tuning_id[:8], *source)
    assert "ffffffff" in refused("show", "ffffffff", *source)


def test_what_runs_is_shown_as_far_as_it_is(db: tuple[str, str], sqlite: Database) -> None:
    held, store = claimed(sqlite, small_request())
    run_search(store, small_request())
    assert "search 6/6" in run("tunings", *db)
    assert "running" in run("show", held.job_id, *db)
    said = run("logs", held.job_id, *db)  # and does not wait for the end
    assert len([line for line in said.splitlines() if " search " in line]) == 6
    assert "cancelling" in run("cancel", held.job_id, *db)


@pytest.mark.parametrize(("verb", "ends"), [("cancel", "cancelled"), ("pause", "paused")])
def test_what_a_killed_worker_had_does_not_wait_for_it(
    verb: str, ends: str, db: tuple[str, str], sqlite: Database
) -> None:
    """No other worker may be there to end it."""
    tuning_id = enqueue(sqlite, small_request())
    with subprocess.Popen(["true"]) as gone:
        pass
    worker = f"{socket.gethostname()}:{gone.pid}"
    assert job_queue.claim(sqlite, worker, tuning_id=tuning_id) is not None
    assert f"is {ends}" in run(verb, tuning_id[:8], *db)


def test_where_nothing_is(module_url: str) -> None:
    assert "no service answers" in refused("tunings", "--url", "http://127.0.0.1:9")
    assert "no database" in refused("tunings", "--db", "sqlite:///missing.db")
    assert "There is none; check --db" in refused("show", "3f2a90c1", "--db", module_url)


def test_a_tuning_is_paused_and_resumed(
    source: tuple[str, str], sqlite: Database, tuning_id: str
) -> None:
    waiting = enqueue(sqlite, small_request())
    assert "is paused" in run("pause", waiting[:8], *source)
    assert "paused" in run("tunings", *source)
    assert "is queued" in run("resume", waiting[:8], *source)
    assert "cannot be paused" in refused("pause", tuning_id[:8], *source)


def test_one_without_an_answer_says_how_to_come_to_one(
    source: tuple[str, str], sqlite: Database
) -> None:
    waiting = enqueue(sqlite, small_request())
    for command in ("export", "explain"):
        assert "Wait until it has finished" in refused(command, waiting[:8], *source)
    run("cancel", waiting[:8], *source)
    for command in ("export", "explain"):
        said = refused(command, waiting[:8], *source)
        assert f"autosync tune --resume {waiting[:8]}" in said
        assert f"autosync export {waiting[:8]} --strategy ID" in said


def test_settings_for_a_framework(
    db: tuple[str, str], tuning_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = json.loads(run("show", tuning_id, *db, "--json"))
    ddp = next(row["strategy_id"] for row in shown["strategies"] if row["is_ddp"])
    chosen = ("export", tuning_id[:8], *db, "--strategy", ddp)
    said = run(*chosen, "--for", "ddp")
    assert "message for message" in said
    assert "DistributedDataParallel(model" in said
    found = json.loads(run(*chosen, "--for", "ddp", "--json"))
    assert found["framework"] == "ddp"
    run(*chosen, "--for", "ddp", "-o", "ddp.json")
    assert "DistributedDataParallel" in json.loads(Path("ddp.json").read_text())
    assert "every gradient is reduce-scattered" in refused(*chosen, "--for", "fsdp2")
    run(*chosen, "--for", "megatron", "-o", "arguments.txt")
    assert "--" not in Path("arguments.txt").read_text(), "a model this small has one bucket"
    run(*chosen, "--for", "torchtitan", "-o", "parallelism.toml")
    table = tomllib.loads(Path("parallelism.toml").read_text())["parallelism"]
    assert table["data_parallel_replicate_degree"] == 4
    assert "DistributedDataParallelKwargs(gradient" in run(*chosen, "--for", "accelerate")
    assert "best.json" in run(*chosen)
    assert json.loads(run(*chosen, "--json")) == json.loads(Path("best.json").read_text())
    assert load_bundle("best.json").strategy.id == ddp
    assert "Bundle: other.json" in run("export", tuning_id[:8], *db, "-o", "other.json")


def test_knobs_of_nccl_are_variables_and_a_file(
    db: tuple[str, str],
    sqlite: Database,
    tuning_id: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = ("export", tuning_id[:8], *db, "--for", "nccl")
    assert "states nothing of NCCL" in refused(*chosen)
    state_knobs(sqlite, NcclKnobs(max_ctas=4))
    said = run(*chosen)
    assert "NCCL_MAX_CTAS=4" in said
    assert "options.config.max_ctas = 4" in said
    assert "need no file" in refused(*chosen, "-o", "nccl_tuner.conf")
    state_knobs(sqlite, NcclKnobs((NcclRange("all_reduce", "Ring", "LL", least_bytes=8),)))
    said = run(*chosen, "-o", "mine.conf")
    assert "NCCL_TUNER_CONFIG_FILE=mine.conf" in said
    assert "one channel" in said
    assert "allreduce,8," in Path("mine.conf").read_text()
    said = run("export", tuning_id[:8], *db, "--for", "autosync", "-o", "settings.json")
    assert "NCCL_TUNER_CONFIG_FILE=nccl_tuner.conf" in said
    assert "--for nccl -o FILE" in said


def state_knobs(database: Database, knobs: NcclKnobs) -> None:
    """In every stored strategy."""
    with database.writing() as session:
        for row in session.scalars(select(StrategyRow)):
            row.document = to_json(from_json(Strategy, row.document).carrying(knobs))


def test_a_bundle_that_swaps(
    db: tuple[str, str], tuning_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = ("export", tuning_id[:8], *db)
    run(*chosen, "-o", "plain.json")
    run(*chosen, "--swap-gb", "15.5")
    plain, swapping = load_bundle("plain.json"), load_bundle("best.json")
    assert swapping.strategy.extension(Offload) == Offload(15_500_000_000)
    run(*chosen, "--swap-gb", "15.5", "--swap-state")
    assert load_bundle("best.json").strategy.extension(Offload) == Offload(
        15_500_000_000, optimizer_state=True
    )
    assert "without a budget" in refused(*chosen, "--swap-state")
    assert swapping.plan == plain.plan
    assert swapping.evidence == Evidence()
    assert "no settings of" in refused(*chosen, "--swap-gb", "1", "--for", "ddp")
    for wrong in ("0", "-1", "nan", "inf"):
        assert "hold no training step" in refused(*chosen, "--swap-gb", wrong)


def test_a_tuning_is_found_however_many_are_newer(
    source: tuple[str, str], sqlite: Database
) -> None:
    """A service lists 500 at a time."""
    oldest = enqueue(sqlite, small_request())
    with sqlite.writing() as session:
        row = session.get_one(TuningRow, oldest)
        columns = {
            column.key: getattr(row, column.key)
            for column in inspect(TuningRow).column_attrs
            if column.key != "kind"
        }
        for number in range(520):
            newer = {"id": f"{number:032x}", "created_at": row.created_at + 1 + number}
            session.add(TuningRow(**{**columns, **newer}))
    for begin in (oldest, oldest[:12], oldest.upper()):
        shown = json.loads(run("show", begin, *source, "--json"))
        assert shown["tuning"]["id"] == oldest
