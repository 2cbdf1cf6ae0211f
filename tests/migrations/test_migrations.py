"""Migrations up and down on both databases, from nothing, from anywhere, and at the same time."""

import gzip
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text
from sqlalchemy.orm import Session

from autosync.api.db import Database, migrate, schema_migration
from autosync.api.db.schema_migration import alembic_config, current_revision, require_schema
from autosync.api.db.tables import Base
from autosync.api.engine import job_queue
from autosync.api.engine.database_store import DatabaseStore
from autosync.api.engine.submission import load_request
from autosync.api.views import documents, reports
from autosync.cluster import Cluster, MessageCost
from autosync.documents import from_json, to_json
from autosync.domain import Domain, Optimizer, Profile
from autosync.errors import NotFound, NotSupported
from autosync.graph import ModelGraph
from tests.api.cli.command import start
from tests.api.databases import opened, postgresql_database
from tests.api.sample import finished, run_search, small_request

STORED = Path(__file__).parent / "database_0014.db.gz"
"""A finished tuning and one that waits, as the fourteenth schema stored them."""


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


@pytest.fixture
def stored_url(tmp_path: Path) -> str:
    (tmp_path / "stored.db").write_bytes(gzip.decompress(STORED.read_bytes()))
    return f"sqlite:///{tmp_path / 'stored.db'}"


def test_a_stored_database_of_an_earlier_day_is_read_and_goes_on(stored_url: str) -> None:
    migrate(stored_url)
    with opened(stored_url) as database:
        with database.reading() as session:
            tunings = {each.state: each.id for each in reports.tunings(session, 10).items}
            ranked = reports.ranked_strategies(session, tunings["finished"]).items
            assert reports.tuning(session, tunings["finished"]).progress.trials == 8 + 12
            assert load_request(session, tunings["queued"]).settings == small_request().settings
        assert sum(row.step_seconds is not None for row in ranked) == 7  # one failed
        held = job_queue.claim(database, "here:1")
        assert held is not None
        run_search(DatabaseStore(database, held.job_id, held.fence), small_request())


def test_tunings_that_measured_costs_share_the_cluster_that_was_asked_for(stored_url: str) -> None:
    url = stored_url
    migrate(url, "0015")
    with opened(url) as database:
        with database.writing() as session:
            probed = _as_if_probed(session)
        for _ in range(2):
            migrate(url)
            with database.reading() as session:
                tunings = reports.tunings(session, 10).items
                (cluster,) = documents.clusters(session, 10).items
                domain = load_request(session, probed).domain
            assert {tuning.cluster_id for tuning in tunings} == {cluster.id}
            assert len({tuning.domain_id for tuning in tunings}) == 2
            assert domain.cluster.costs
            assert [each.domain_id for each in tunings if each.id == probed] == [domain.id]
            migrate(url, "0015")
            with database.reading() as session:
                assert session.scalar(text("select count(*) from clusters")) == 2


def _as_if_probed(session: Session) -> str:
    """The stored finished tuning measured its cluster's costs, as the fifteenth schema wrote it
    down; its id."""
    query = (
        "select jobs.id, clusters.document, graphs.document, domains.profile, domains.optimizer, "
        "clusters.created_at from jobs join domains on domains.id = jobs.domain_id "
        "join clusters on clusters.id = domains.cluster_id "
        "join graphs on graphs.id = domains.graph_id where jobs.state = 'finished'"
    )
    tuning_id, *parts, created_at = session.execute(text(query)).one()
    asked = from_json(Cluster, parts[0])
    assert not asked.costs
    cluster = replace(asked, costs=(MessageCost("engine", 1e-4),), link_seconds_per_send=1e-5)
    graph, profile = from_json(ModelGraph, parts[1]), from_json(Profile, parts[2])
    domain = Domain(graph, cluster, profile, from_json(Optimizer, parts[3]))
    times = {"created_at": created_at + 1}
    row = {"id": cluster.id, "name": cluster.name, "nodes": len(cluster.nodes), **times}
    row |= {"world_size": cluster.world_size, "document": to_json(cluster)}
    _insert(session, "clusters", row)
    session.execute(
        text(
            "insert into domains (id, graph_id, cluster_id, profile, profile_source, optimizer, "
            "created_at) select :id, graph_id, :cluster, profile, profile_source, optimizer, "
            "created_at from domains where id = (select domain_id from jobs where id = :tuning)"
        ),
        {"id": domain.id, "cluster": cluster.id, "tuning": tuning_id},
    )
    session.execute(
        text("update jobs set domain_id = :domain where id = :tuning"),
        {"domain": domain.id, "tuning": tuning_id},
    )
    told = {"kind": "opening", "message": "measuring what messages cost", "done": 0, "total": 0}
    _insert(session, "events", {"tuning_id": tuning_id, **told, **times})
    return str(tuning_id)


def _insert(session: Session, table: str, row: dict[str, object]) -> None:
    names, values = ", ".join(row), ", ".join(f":{name}" for name in row)
    session.execute(text(f"insert into {table} ({names}) values ({values})"), row)


def _set_revision(database: Database, revision: str) -> None:
    with database.writing() as session:
        session.execute(text(f"update alembic_version set version_num = '{revision}'"))


def test_a_database_of_an_older_schema_is_refused_with_the_way_out(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'old.db'}"
    migrate(url)
    with opened(url) as database:
        _set_revision(database, "0007")
        with pytest.raises(NotFound, match=r"schema revision 0007.* reads 0014 on") as refused:
            migrate(url)
    assert "Open it once" in refused.value.remedy


def test_only_an_upgrade_and_a_service_change_the_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'old.db'}"
    migrate(url)
    with opened(url) as database:
        _set_revision(database, "0013")
    monkeypatch.setattr(schema_migration, "_check_known", lambda *_: None)
    with pytest.raises(NotSupported, match="schema revision 0013; this version needs") as refused:
        require_schema(url, create=True)
    assert "autosync db upgrade" in refused.value.remedy
    with opened(url) as database, database.engine.connect() as connection:
        assert current_revision(connection) == "0013"


def test_the_schema_is_made_where_there_is_none(empty_url: str) -> None:
    with pytest.raises(NotFound, match="is empty"):
        require_schema(empty_url)
    require_schema(empty_url, create=True)
    require_schema(empty_url)
    with opened(empty_url) as database:
        assert tables(database) == set(Base.metadata.tables)


def test_processes_that_start_together_migrate_once(empty_url: str, tmp_path: Path) -> None:
    started = [start(tmp_path, "db", "upgrade", "--db", empty_url) for _ in range(3)]
    errors = [process.communicate()[1] for process in started]
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
        _set_revision(database, "9999")
        with pytest.raises(NotFound, match=r"9999.*newer version"):
            migrate(empty_url)
