"""Trained simulators from the command line: in, listed, used, and out again."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autosync.api.cli.commands import simulator
from autosync.api.cli.commands.simulator import app
from autosync.api.cli.connection import connected
from autosync.api.db import Database, migrate
from autosync.api.engine import job_queue, version_training
from autosync.api.engine.job_queue import Claim
from autosync.api.engine.simulator_store import simulator_of
from autosync.api.engine.version_training import NOTHING_NEW
from autosync.errors import AutosyncError, InvalidInput
from autosync.simulator.learned.checkpoint import load_checkpoint
from autosync.simulator.learned.learned_simulator import LearnedSimulator
from tests.api.checkpoints import checkpoint
from tests.api.cli.command import autosync
from tests.api.databases import opened
from tests.api.simulator_versions import store_versions
from tests.domains import chain_graph, grid_cluster
from tests.simulator.measurements import measured, write


def ranked_by(name: str, db: str) -> str:
    """The simulator that a ranking used."""
    with connected(db, None, temporary=True) as at:
        found = at.client.rank(chain_graph(), grid_cluster(), simulator=name, proposals=8)
    return found.simulator


def empty_database(folder: Path) -> str:
    """The URL of a migrated one there."""
    url = f"sqlite:///{folder / 'a.db'}"
    migrate(url)
    return url


def test_a_simulator_is_stored_found_by_name_and_written_again(tmp_path: Path) -> None:
    card, weights = checkpoint(tmp_path, LearnedSimulator())
    db = empty_database(tmp_path)

    def printed(*words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--db", db], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    with pytest.raises(AutosyncError, match="no trained simulator"):
        ranked_by("mine", db)
    printed("add", "mine", str(tmp_path / "made.safetensors"))
    (listed,) = json.loads(printed("list", "--json"))
    assert (listed["name"], listed["kind"], listed["trials"]) == ("mine", "gaussian process", 60)
    assert json.loads(printed("show", "mine")) == json.loads(card)
    printed("save", "mine", "-o", str(tmp_path / "copy.safetensors"))
    assert (tmp_path / "copy.safetensors").read_bytes() == weights
    assert json.loads((tmp_path / "copy.json").read_text()) == json.loads(card)
    for command in ("show", "remove"):  # what --simulator takes as well
        refused = str(CliRunner().invoke(app, [command, "learned", "--db", db]).exception)
        assert "comes with AutoSync. Stored are: mine." in refused
    printed("remove", "mine")
    with pytest.raises(AutosyncError) as gone:
        ranked_by("mine", db)
    assert "timeline" in gone.value.remedy


def test_training_writes_what_can_be_kept(tmp_path: Path) -> None:
    folder, db = tmp_path / "measured", empty_database(tmp_path)
    domains = [measured(1.0, seed=1, count=24), measured(0.5, seed=2, count=24)]
    write(folder, domains)
    trained = tmp_path / "trained.safetensors"
    words = ["train", str(folder), "-o", str(trained)]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    card = json.loads(trained.with_suffix(".json").read_text())
    learned = sum(source["trials"] for source in card["sources"])
    assert f"{learned} trials of 2 domains" in done.stdout
    assert 24 < learned < 48, "some are never learned from"
    assert (card["accuracy"], card["unseen"]) == (None, "none: domains of one model only")
    added = ["add", "both", str(trained), "--db", db]
    assert CliRunner().invoke(app, added, catch_exceptions=False).exit_code == 0
    with opened(db) as database, database.reading() as session:
        stored = simulator_of(session, "both")
    fresh, _ = load_checkpoint(trained)
    seconds = [s.predict(domains[0].domain, domains[0].population) for s in (stored, fresh)]
    assert (seconds[0] == seconds[1]).all()


@pytest.mark.parametrize(
    ("words", "thing"),
    [
        ((), "--output"),
        (("-o", "a.safetensors", "--url", "http://127.0.0.1:9"), "--url"),
        (("-o", "a.safetensors", "--db", "sqlite:///other.db"), "--db"),
    ],
)
def test_a_request_for_a_checkpoint_is_refused_where_it_is_half_a_one_or_for_elsewhere(
    words: tuple[str, ...], thing: str, tmp_path: Path
) -> None:
    refused = CliRunner().invoke(app, ["train", str(tmp_path), *words]).exception
    assert isinstance(refused, InvalidInput)
    assert refused.thing == thing


def test_a_version_has_no_encoder(tmp_path: Path) -> None:
    words = ["train", "--encoder", "gat", "--db", empty_database(tmp_path)]
    refused = CliRunner().invoke(app, words).exception
    assert isinstance(refused, InvalidInput)
    assert refused.thing == "--encoder"


def test_a_training_that_makes_no_version_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = empty_database(tmp_path)
    told = autosync(tmp_path, "simulator", "train", "--db", db).stderr
    assert NOTHING_NEW in " ".join(told.split())

    def failing(database: Database, held: Claim) -> None:
        raise InvalidInput("no room is left.", thing="disk", value=0, remedy="Make some.")

    monkeypatch.setattr(version_training, "run_training", failing)
    monkeypatch.setattr(simulator, "log_to_file", lambda kind: tmp_path / f"{kind}.log")
    failed = CliRunner().invoke(app, ["train", "--db", db]).exception
    assert isinstance(failed, AutosyncError)
    assert "failed: no room is left." in failed.message
    assert "train.log" in failed.remedy


def test_a_training_comes_after_an_older_one_whose_worker_is_gone(tmp_path: Path) -> None:
    db = empty_database(tmp_path)
    with opened(db) as database:
        with database.writing() as session:
            job_queue.enqueue_training(session)
        assert job_queue.claim(database, "gone:1", -1.0, kind="training") is not None
    told = autosync(tmp_path, "simulator", "train", "--db", db).stderr
    assert f"is finished: {NOTHING_NEW}" in " ".join(told.split())


def test_versions_are_listed_and_brought_back(tmp_path: Path) -> None:
    db = empty_database(tmp_path)
    checkpoint(tmp_path, LearnedSimulator())
    runner = CliRunner()
    added = ["add", "mine", str(tmp_path / "made.safetensors"), "--db", db]
    assert runner.invoke(app, added).exit_code == 0
    shown = runner.invoke(app, ["versions", "--db", db, "--json"], catch_exceptions=False)
    assert json.loads(shown.stdout) == {"in_use": 0, "items": []}
    assert runner.invoke(app, ["promote", "0", "--db", db]).exit_code == 0
    refused = runner.invoke(app, ["promote", "3", "--db", db]).exception
    assert isinstance(refused, AutosyncError)
    assert "There are: 0." in refused.remedy


@pytest.mark.parametrize("words", [["train", "datasets/runtimes"], ["save", "mine"]])
def test_an_output_that_cannot_be_written_is_refused_by_name(
    words: list[str], tmp_path: Path
) -> None:
    db = empty_database(tmp_path)
    checkpoint(tmp_path, LearnedSimulator())
    runner = CliRunner()
    made = str(tmp_path / "made.safetensors")
    assert runner.invoke(app, ["add", "mine", made, "--db", db]).exit_code == 0
    missing = tmp_path / "missing" / "out.safetensors"
    given = [*words, "-o", str(missing), *(["--db", db] if words[0] == "save" else [])]
    refused = runner.invoke(app, given).exception
    assert isinstance(refused, InvalidInput)
    assert "missing" in str(refused)
    assert refused.remedy


def test_a_folder_is_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = empty_database(tmp_path)
    checkpoint(tmp_path, LearnedSimulator())
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    assert runner.invoke(app, ["add", "mine", ".", "--db", db]).exit_code == 2
    assert runner.invoke(app, ["add", "mine", "made.safetensors", "--db", db]).exit_code == 0
    refused = runner.invoke(app, ["save", "mine", "-o", ".", "--db", db]).exception
    assert isinstance(refused, InvalidInput)
    assert "it is a folder" in refused.message


def test_a_ranking_takes_the_version_that_is_in_use(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    migrate(url)
    for sources in (12, 3):
        assert ranked_by("learned", url) == "learned"
        with opened(url) as database:
            with database.reading() as session:
                found = simulator_of(session, "learned")
            assert isinstance(found, LearnedSimulator)
            assert len(found.sources) == sources
            store_versions(database)
