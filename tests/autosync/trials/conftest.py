"""One pool per launcher, shared by the whole contract suite: a torch process takes seconds."""

import secrets
from collections.abc import Iterator

import pytest

from autosync.environment import PASSED_VARIABLE
from autosync.trials.contract import Workload
from autosync.trials.launchers.local_launcher import LocalLauncher
from autosync.trials.launchers.testbed_launcher import TestbedLauncher
from autosync.trials.pool.process_pool import ProcessPool
from tests.autosync.trials.strategies import small_domain

pytest.register_assert_rewrite("tests.autosync.trials.contract_suite")

FAULTY = ("faulty=benchmarks.faults.faulty:build_faulty",)
MARK = ("AUTOSYNC_CONTRACT_SUITE", secrets.token_hex(8))
"""In the environment of all that a pool under the suite starts, so that what it leaves is found."""


def launchers() -> dict[str, LocalLauncher | TestbedLauncher]:
    # Contaminated passes are not repeated: these tests are about behaviour, on a busy machine.
    return {
        "local": LocalLauncher(workloads=FAULTY, repeats=0),
        "testbed": TestbedLauncher(workloads=FAULTY, repeats=0, check=False),
    }


@pytest.fixture(scope="module")
def marked(own_fork_servers: None) -> Iterator[None]:
    """What is started meanwhile carries `MARK`, where it takes this process's environment over."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(*MARK)
        patched.setenv(PASSED_VARIABLE, MARK[0])
        yield


@pytest.fixture(scope="module", params=["local", "testbed"])
def pool(request: pytest.FixtureRequest) -> Iterator[ProcessPool]:
    """A pool of `faulty` workers; see `benchmarks.faults.faulty` for what its keys do."""
    if request.param == "testbed":
        request.getfixturevalue("testbed_possible")
    workload = Workload(small_domain(), name="faulty", byte_scale=0.5)
    with launchers()[request.param].open(workload) as opened:
        yield opened
