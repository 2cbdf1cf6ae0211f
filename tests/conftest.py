"""What tests of several rooms need of the machine."""

import pytest

from autosync.errors import NotSupported
from autosync.trials.testbed import namespaces
from tests.domains import grid_cluster


@pytest.fixture(scope="session")
def testbed_possible() -> None:
    try:
        namespaces.down(namespaces.up(grid_cluster(2)))
    except NotSupported as error:
        pytest.skip(f"NO TESTBED HERE, its tests do not run: {error}")
