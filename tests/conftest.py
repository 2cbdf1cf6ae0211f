"""Fixtures, and the order of the tests, for the whole test suite."""

import gc
import os

# Before NumPy and torch are loaded, here and in all that tests start: several processes share the
# cores, and threads that wait for one another spin. Training small networks beside other tests took
# eight times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import multiprocessing.util
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from autosync.environment import REPEATS_VARIABLE
from autosync.errors import NotSupported
from autosync.trials.launchers import local_launcher
from autosync.trials.pool.fork_server import ForkServer
from autosync.trials.testbed import namespaces
from tests.domains import grid_cluster

hypothesis.settings.register_profile("short", deadline=None, max_examples=15)
hypothesis.settings.register_profile("long", deadline=None, max_examples=100)
hypothesis.settings.load_profile("short")


SHARING = {
    "tests/simulator/learned/test_bundled_simulator.py": "tests/simulator/test_bundled_dataset.py",
    "tests/search/loop/test_sources.py": "tests/search/loop/test_design_candidates.py",
}
"""Files that run in the process of another, with which they share what takes long to make."""


class FilesTogether(LoadFileScheduling):  # type: ignore[misc]  # xdist has no annotations
    """Each file's tests run in one process, as with --dist loadfile, and so do files that share."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return SHARING.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesTogether | None:
    return FilesTogether(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with tests that may take long begin first, then those with many tests: what begins last
    ends last, and alone. (xdist would begin with those of many tests, see scripts/check.)"""
    longest: Counter[Path] = Counter()
    for item in items:
        allowed = item.get_closest_marker("timeout")
        longest[item.path] = max(longest[item.path], allowed.args[0] if allowed else 0)
    count = Counter(item.path for item in items)
    items.sort(key=lambda item: (-longest[item.path], -count[item.path]))


gc.disable()  # until all is collected: modules and tests stay, and looking at them takes seconds


def pytest_collection_finish(session: pytest.Session) -> None:
    """Collections of garbage in tests need not look at all modules and tests, nor come as often as
    usual: while a million objects are made they take almost half of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def sockets_of_multiprocessing_removed() -> Iterator[None]:
    """A worker of xdist may end without what removes them at exit."""
    yield
    if "PYTEST_XDIST_WORKER" in os.environ:
        multiprocessing.util._run_finalizers()  # type: ignore[attr-defined]  # typeshed lacks it


@pytest.fixture(scope="session", autouse=True)
def disturbed_passes_count() -> Iterator[None]:
    """Other tests load the machine all along: a pass that waited for a quiet moment, or was
    measured again, would be disturbed like the first."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(REPEATS_VARIABLE, "0")
        yield


class SharedForkServer(ForkServer):
    """Outlives the pools that fork their workers from it."""

    def close(self) -> None: ...


@pytest.fixture(scope="session", autouse=True)
def one_fork_server() -> Iterator[None]:
    """Pools of trials fork their workers from one process: each would load torch anew. What tests
    how such a process starts and ends has `own_fork_servers`."""
    shared = SharedForkServer()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(local_launcher, "ForkServer", lambda: shared)
        yield
    ForkServer.close(shared)


@pytest.fixture(scope="module")
def own_fork_servers() -> Iterator[None]:
    """Every pool has a process of its own to fork from, as outside the tests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(local_launcher, "ForkServer", ForkServer)
        yield


@pytest.fixture(scope="session")
def testbed_possible() -> None:
    try:
        namespaces.down(namespaces.up(grid_cluster(2)))
    except NotSupported as error:
        pytest.skip(f"NO TESTBED HERE, its tests do not run: {error}")
