"""What tests of several rooms need of the machine."""

import os
import shutil
from collections.abc import Iterator
from multiprocessing.util import get_temp_dir

import pytest

from autosync.environment import REPEATS_VARIABLE
from autosync.errors import NotSupported
from autosync.trials.testbed import namespaces
from tests.domains import grid_cluster


@pytest.fixture(scope="session", autouse=True)
def sockets_of_multiprocessing_removed() -> Iterator[None]:
    """A worker of xdist ends without what removes their folder at exit elsewhere."""
    yield
    if "PYTEST_XDIST_WORKER" in os.environ:
        shutil.rmtree(get_temp_dir(), ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def disturbed_passes_count() -> Iterator[None]:
    """Other tests load the machine all along: a pass that waited for a quiet moment, or was
    measured again, would be disturbed like the first."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(REPEATS_VARIABLE, "0")
        yield


@pytest.fixture(scope="session")
def testbed_possible() -> None:
    try:
        namespaces.down(namespaces.up(grid_cluster(2)))
    except NotSupported as error:
        pytest.skip(f"NO TESTBED HERE, its tests do not run: {error}")
