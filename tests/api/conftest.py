"""Real databases, of which each test that changes one gets its own, and a client of the service."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from autosync.api.db import Database, migrate
from autosync.api.engine.service_limits import ServiceLimits
from autosync.api.http.app import create_app
from tests.api.databases import migrated_file, opened, postgresql_database, postgresql_server
from tests.api.http.rest_answers import posted
from tests.api.openapi_document import built_once
from tests.api.real_tuning import RealTuning, killed_and_resumed
from tests.api.sample import Shown, shown_tunings


@pytest.fixture(scope="session", autouse=True)
def document_built_once() -> None:
    built_once()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    with postgresql_server() as url:
        yield url


@pytest.fixture(scope="session")
def postgresql_template(postgresql: str) -> Iterator[str]:
    with postgresql_database(postgresql) as url:
        migrate(url)
        yield url.rpartition("/")[2].partition("?")[0]


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return migrated_file(tmp_path_factory.mktemp("template"))


@pytest.fixture(scope="session")
def real_tuning(tmp_path_factory: pytest.TempPathFactory) -> RealTuning:
    """Finished; whoever changes it works on a copy."""
    return killed_and_resumed(tmp_path_factory.mktemp("tune"))


@pytest.fixture(scope="module")
def module_url(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A migrated file for all tests of a module."""
    path = tmp_path_factory.mktemp("module") / "test.db"
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"


@contextmanager
def fresh_url(request: pytest.FixtureRequest, kind: str) -> Iterator[str]:
    """A migrated database for a fixture of any scope. kind: `sqlite` or `postgresql`."""
    if kind == "sqlite":
        path = request.getfixturevalue("tmp_path_factory").mktemp("fresh") / "test.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    server = request.getfixturevalue("postgresql")
    template = request.getfixturevalue("postgresql_template")
    with postgresql_database(server, template) as fresh:
        yield fresh


@pytest.fixture(scope="session")
def shown_sqlite(request: pytest.FixtureRequest) -> Iterator[Shown]:
    with fresh_url(request, "sqlite") as url, opened(url) as database:
        yield shown_tunings(database)


@pytest.fixture(scope="session")
def shown_postgresql(request: pytest.FixtureRequest) -> Iterator[Shown]:
    with fresh_url(request, "postgresql") as url, opened(url) as database:
        yield shown_tunings(database)


@pytest.fixture(params=["sqlite", "postgresql"])
def shown(request: pytest.FixtureRequest) -> Shown:
    """One of each kind for all tests of a process that only read."""
    found: Shown = request.getfixturevalue(f"shown_{request.param}")
    return found


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    shutil.copy(sqlite_template, tmp_path / "test.db")
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A migrated database of each kind."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_url")
        return
    with fresh_url(request, "postgresql") as fresh:
        yield fresh


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    with opened(url) as database:
        yield database


@pytest.fixture
def sqlite(sqlite_url: str) -> Iterator[Database]:
    with opened(sqlite_url) as database:
        yield database


@pytest.fixture
def limits() -> ServiceLimits:
    """Of the client's service; files may have their own."""
    return ServiceLimits()


@pytest.fixture
def client(sqlite: Database, limits: ServiceLimits) -> Iterator[TestClient]:
    app = create_app(sqlite, limits=limits)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


@pytest.fixture
def ids(client: TestClient) -> dict[str, str]:
    """A graph and a cluster that were posted."""
    return posted(client)
