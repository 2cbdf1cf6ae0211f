"""How a rank's failure is named: lack of memory by what it wrote, refusals by what it raised."""

import gc

import pytest

from autosync.errors import BudgetTooSmall, DeviceMemoryExceeded, InvalidInput, NotSupported
from autosync.runtime.transport.base import SynchronizationFailed
from autosync.trials.machine import speaks_of_memory
from autosync.trials.worker.rank import without_collection
from autosync.trials.worker.worker_main import error_kind


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
    assert speaks_of_memory(text)
    assert error_kind(RuntimeError(text)) == "out_of_memory"


def test_an_arena_that_overflows_is_out_of_memory() -> None:
    assert error_kind(DeviceMemoryExceeded("9 bytes of 8.", thing="arena")) == "out_of_memory"


def test_a_budget_that_holds_no_step_is_told_from_other_refusals() -> None:
    assert error_kind(BudgetTooSmall("9 bytes, and the device's memory is full.")) == "over_budget"
    compiled = NotSupported("the model is compiled.", thing="swap.budget_bytes")
    assert error_kind(compiled) == "refused"


def test_other_ends_are_crashes() -> None:
    assert not speaks_of_memory("Connection closed by peer [10.0.0.2]:5000")
    assert error_kind(RuntimeError("Connection closed by peer")) == "crashed"


def test_a_failed_synchronization_is_no_refusal() -> None:
    """It has ended the groups that the next plan would run on."""
    assert error_kind(InvalidInput("the plan is another model's.")) == "refused"
    assert error_kind(SynchronizationFailed("a peer has gone.")) == "crashed"


def test_garbage_is_collected_after_a_refused_trial() -> None:
    assert gc.isenabled()
    with pytest.raises(InvalidInput), without_collection():
        raise InvalidInput("refused on purpose.")
    assert gc.isenabled()
