"""What ends in the middle of a collective: a rank of a training, a trial, a rank of a trial."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from autosync.cluster import Backend
from autosync.trials.contract import Workload
from autosync.trials.launchers.local_launcher import LocalLauncher
from autosync.trials.pool.process_pool import ProcessPool
from tests.autosync.runtime.cases import Case
from tests.autosync.runtime.device.gpus import on_gpus
from tests.autosync.runtime.execution import test_failures
from tests.autosync.runtime.place import COMPUTE_DEVICE
from tests.autosync.runtime.ranks import ranks
from tests.autosync.runtime.training import OVERLAP
from tests.autosync.trials.conftest import FAULTY
from tests.autosync.trials.contract_suite import cancelled_in_the_middle, trial
from tests.autosync.trials.strategies import small_domain

TIMEOUT_SECONDS = 10.0
"""Of the process group. A rank that is not told much sooner than `GPU_ANSWER_SECONDS` is killed
and named as one that gave no answer."""
BACKEND: Backend = "nccl"


@on_gpus
@pytest.mark.parametrize(
    ("way", "method", "victim"),
    [("nccl", "all_reduce", 1), ("nccl", "mixed", 0), ("cuda", "zero", 1)],
)
def test_a_killed_rank_is_an_error_on_every_survivor(way: str, method: str, victim: int) -> None:
    """Rank 0 holds the store. On NCCL survivors are in a kernel that waits for the dead."""
    case = Case(optimizer="sgd", method=method, schedule=OVERLAP, groups=4)
    with ranks(3, timeout_seconds=TIMEOUT_SECONDS, way=way) as pool:
        for seen in test_failures.mourn(pool, case, victim, "backward"):
            assert "A peer died" in seen.error
            assert "from the last checkpoint" in seen.error
            assert seen.again
            assert seen.released


@pytest.fixture(scope="module")
def trials() -> Iterator[ProcessPool]:
    """Two NCCL workers that may share a GPU; see `benchmarks.faults.faulty` for their keys."""
    domain = small_domain()
    domain = replace(domain, cluster=replace(domain.cluster, backend=BACKEND))
    workload = Workload(domain, name="faulty", compute="kernels", device=COMPUTE_DEVICE)
    with LocalLauncher(FAULTY, repeats=0, share_gpus=True).open(workload) as pool:
        yield pool


@on_gpus
@pytest.mark.parametrize(
    ("key", "kind", "words", "timeout_seconds"),
    [
        ("stopped:1", "timeout", "no answer in time from rank 0, rank 1", 3.0),
        ("killed:1", "crashed", "rank 1", 60.0),
        ("exit:0", "crashed", "rank 0", 60.0),
    ],
)
def test_a_trial_that_ends_in_a_collective_costs_nothing_else(
    trials: ProcessPool, key: str, kind: str, words: str, timeout_seconds: float
) -> None:
    """The other rank waits in a kernel: it ends with its group, and the next trial is good."""
    assert trial(trials, f"before {key}").error is None
    error = trial(trials, key, timeout_seconds=timeout_seconds).error
    assert error is not None
    assert (error.kind, words in error.message) == (kind, True), error.message


@on_gpus
def test_a_trial_is_cancelled_in_a_collective(trials: ProcessPool) -> None:
    assert trial(trials, "before cancelling").error is None
    assert cancelled_in_the_middle(trials, "hang:0") == ["by hand"]
    assert trial(trials, "after cancelling").error is None
