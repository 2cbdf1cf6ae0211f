"""How a rank's failure is named: lack of memory by what it wrote, refusals by what it raised."""

import pytest

from autosync.errors import BudgetTooSmall, DeviceMemoryExceeded, InvalidInput, NotSupported
from autosync.runtime.transport.base import SynchronizationFailed
from autosync.trials.commands import PEER_LOST, CommandFailed
from autosync.trials.failures import error_kind, first_cause
from autosync.trials.machine import reports_lack_of_memory


@pytest.mark.parametrize(
    "text",
    [
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "OSError: [Errno 12] Cannot allocate memory",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1073741824 bytes",
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "MemoryError",
    ],
)
def test_a_lack_of_memory_has_many_words(text: str) -> None:
    assert reports_lack_of_memory(text)
    assert not reports_lack_of_memory("Connection closed by peer [10.0.0.2]:5000")
    assert error_kind(RuntimeError(text)) == "out_of_memory"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DeviceMemoryExceeded("9 bytes of 8.", thing="arena"), "out_of_memory"),
        (BudgetTooSmall("9 bytes, and the device's memory is full."), "over_budget"),
        (NotSupported("the model is compiled.", thing="swap.budget_bytes"), "refused"),
        (InvalidInput("the plan is another model's."), "refused"),
        (InvalidInput("no connection between these variables."), "refused"),
        (RuntimeError("a shape does not fit"), "crashed"),
        # it has ended the groups that the next plan would run on
        (SynchronizationFailed("a peer has gone."), PEER_LOST),
        (SynchronizationFailed("Application timeout caused pair closure"), "timeout"),
        (SynchronizationFailed("the trial was abandoned."), PEER_LOST),
        (RuntimeError("[pair.cc:525] Connection closed by peer [10.0.0.2]:5000"), PEER_LOST),
        (RuntimeError("[pair.cc:320] writev [10.0.0.2]:5000: Broken pipe"), PEER_LOST),
        (RuntimeError("[unbound_buffer.cc:84] Timed out waiting 3000ms for recv"), "timeout"),
        (SynchronizationFailed("message 3 failed: Timed out waiting 3000ms"), "timeout"),
        # connections of the user's own step are no peers
        (ConnectionRefusedError(111, "Connection refused"), "crashed"),
        (TimeoutError("the data source timed out"), "crashed"),
    ],
)
def test_an_error_is_of_a_kind(error: Exception, kind: str) -> None:
    assert error_kind(error) == kind


def test_a_wait_that_ended_goes_before_the_peers_it_cost() -> None:
    """A rank that began the trial later counts fewer seconds until its connection closed."""
    parted = CommandFailed(PEER_LOST, "connection closed", 1.96)
    _, found = first_cause({0: CommandFailed("timeout", "waited", 2.01), 2: parted})
    assert (found.kind, found.message) == ("timeout", "rank 0: waited")


def test_an_error_of_a_rank_is_the_first_cause() -> None:
    crashed = CommandFailed("crashed", "ValueError: no", 3.0)
    _, found = first_cause({0: CommandFailed("timeout", "waited", 0.1), 1: crashed})
    assert found.message == "rank 1: ValueError: no"


def test_a_lost_peer_alone_is_a_crash() -> None:
    _, found = first_cause(
        {1: CommandFailed(PEER_LOST, "later", 0.2), 2: CommandFailed(PEER_LOST, "closed", 0.1)}
    )
    assert (found.kind, found.message) == ("crashed", "rank 2: closed")
