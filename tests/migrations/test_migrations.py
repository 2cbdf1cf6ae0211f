"""Migrations up and down on both databases, from nothing, from anywhere, and at the same time."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from autosync.api.db import Database, migrate
from autosync.api.db.schema_migration import alembic_config, current_revision
from autosync.api.db.tables import Base
from autosync.api.engine import tuning_queue
from autosync.api.engine.database_store import DatabaseStore
from autosync.api.engine.submission import enqueue, load_request
from autosync.api.engine.training.training_trials import measured_sources
from autosync.api.views import reports
from autosync.api.views.simulator_versions_view import simulator_versions
from autosync.errors import NotFound
from tests.api.databases import copied, opened, postgresql_database
from tests.api.sample import finished, run_search, small_request


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    with postgresql_database(request.getfixturevalue("postgresql")) as url:
        yield url


def tables(database: Database) -> set[str]:
    return set(inspect(database.engine).get_table_names()) - {"alembic_version"}


def test_migrations_make_exactly_the_tables_of_the_models(empty_url: str) -> None:
    migrate(empty_url)
    with opened(empty_url) as database, database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
        head = ScriptDirectory.from_config(alembic_config()).get_current_head()
        assert current_revision(connection) == head


def test_down_leaves_nothing_and_up_again_works(empty_url: str) -> None:
    migrate(empty_url)
    migrate(empty_url, "base")
    with opened(empty_url) as database:
        assert tables(database) == set()
        migrate(empty_url)
        assert tables(database) == set(Base.metadata.tables)
        assert len(finished(database)) == 32


def test_migrating_again_keeps_the_rows(empty_url: str) -> None:
    migrate(empty_url)
    with opened(empty_url) as database:
        finished(database)
        with database.reading() as session:
            before = session.execute(text("select count(*) from trials")).scalar_one()
        migrate(empty_url)
        with database.reading() as session:
            assert session.execute(text("select count(*) from trials")).scalar_one() == before > 0


def test_trials_of_the_first_schema_are_kept_without_what_it_did_not_have(empty_url: str) -> None:
    migrate(empty_url)
    with opened(empty_url) as database:
        tuning_id = finished(database)
        before = DatabaseStore(database, tuning_id, 1).trials()
        migrate(empty_url, "0001")
        migrate(empty_url)
        after = DatabaseStore(database, tuning_id, 1).trials()
    assert any(trial.timeline is not None for trial in before)
    assert after == [replace(trial, sent_bytes=(), timeline=None) for trial in before]


def test_a_tuning_from_before_there_were_versions_keeps_its_trials(empty_url: str) -> None:
    """And the next training learns from them."""
    migrate(empty_url)
    with opened(empty_url) as database:
        tuning_id = finished(database, small_request(12))
        migrate(empty_url, "0004")
        migrate(empty_url)
        with database.reading() as session:
            assert reports.tuning(session, tuning_id).simulator_version is None
            assert simulator_versions(session).in_use == 0
            (source,) = measured_sources(session)
            measured = reports.ranked_strategies(session, tuning_id).items
    sound = [row for row in measured if row.step_seconds is not None]
    assert len(source.trials.step_seconds) == len(sound) > 0


def test_tunings_from_before_rankings_were_summed_up_rank_as_they_did(empty_url: str) -> None:
    migrate(empty_url)
    with opened(empty_url) as database:
        tuning_id = finished(database, small_request(8))
        with database.reading() as session:
            before = reports.ranked_strategies(session, tuning_id)
            ran_on = reports.tuning(session, tuning_id).ran_on
        migrate(empty_url, "0006")
        migrate(empty_url)
        with database.reading() as session:
            assert reports.ranked_strategies(session, tuning_id) == before
            assert reports.tuning(session, tuning_id).ran_on == ran_on != []


def test_a_tuning_with_the_share_of_a_genetic_search_is_read_without(empty_url: str) -> None:
    migrate(empty_url, "0013")
    with opened(empty_url) as database:
        waiting = enqueue(database, small_request())
        with database.engine.begin() as connection:
            known = json.loads(
                connection.execute(text("select settings from tunings")).scalar_one()
            )
            old = json.dumps(known | {"genetic_share": 0.5})
            connection.execute(text("update tunings set settings = :old"), {"old": old})
        migrate(empty_url)
        with database.reading() as session:
            assert load_request(session, waiting).settings == small_request().settings


def test_data_of_every_revision_is_upgraded(empty_url: str) -> None:
    """From the newest to the oldest, a step at a time: what a revision could not hold is lost on
    the way down, and what it held is there when a copy has gone up. Then the service goes on."""
    migrate(empty_url)
    script = ScriptDirectory.from_config(alembic_config())
    newest, *older = (step.revision for step in script.walk_revisions())
    assert len(older) > 7
    with opened(empty_url) as database:
        tuning_id = finished(database, small_request(8))
        waiting = enqueue(database, small_request())
        with database.reading() as session:
            before = [
                (row.strategy_id, row.step_seconds, row.trials)
                for row in reports.ranked_strategies(session, tuning_id).items
            ]
        for revision in older:
            migrate(empty_url, revision)
            with database.engine.connect() as connection:
                assert current_revision(connection) == revision
            database.close()  # PostgreSQL copies what nobody is connected to
            with copied(empty_url) as copy:
                migrate(copy)
                with opened(copy) as upgraded, upgraded.reading() as session:
                    assert current_revision(session.connection()) == newest
                    ranked = reports.ranked_strategies(session, tuning_id).items
                    found = [(row.strategy_id, row.step_seconds, row.trials) for row in ranked]
                    assert found == before, revision
                    tuning = reports.tuning(session, tuning_id)
                    assert (tuning.state, tuning.progress.trials) == ("finished", 8 + 12), revision
                    assert reports.tuning(session, waiting).state == "queued", revision
        migrate(empty_url)
        held = tuning_queue.claim(database, "here:1")
        assert held is not None
        assert held.tuning_id == waiting
        run_search(DatabaseStore(database, waiting, held.fence), small_request())
        assert len(finished(database)) == 32


def test_processes_that_start_together_migrate_once(empty_url: str) -> None:
    code = f"from autosync.api.db import migrate; migrate({empty_url!r})"
    command = [sys.executable, "-c", code]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(3)]
    errors = [process.communicate()[1].decode() for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], errors
    with opened(empty_url) as database:
        assert tables(database) == set(Base.metadata.tables)


def test_a_migration_that_fails_leaves_the_database_as_it_was(empty_url: str) -> None:
    with opened(empty_url) as database:
        with database.writing() as session:
            session.execute(text("create table trials (id integer)"))  # in the way of ours
        with pytest.raises(Exception, match="trials"):
            migrate(empty_url)
        assert tables(database) == {"trials"}


def test_a_database_of_a_newer_version_is_refused(empty_url: str) -> None:
    migrate(empty_url)
    with opened(empty_url) as database:
        with database.writing() as session:
            session.execute(text("update alembic_version set version_num = '9999'"))
        with pytest.raises(NotFound, match=r"9999.*newer version"):
            migrate(empty_url)
