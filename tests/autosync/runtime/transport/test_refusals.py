"""What ranks tell each other through a store."""

import pytest
from torch._C._distributed_c10d import HashStore
from torch.distributed.distributed_c10d import PrefixStore

from autosync.errors import (
    AutosyncError,
    BudgetTooSmall,
    DeviceMemoryExceeded,
    InvalidInput,
    NotSupported,
)
from autosync.runtime.transport.agreement import Refusals, reported
from autosync.runtime.transport.failures import SynchronizationFailed

FROZEN = NotSupported("frozen.", thing="layer", value=3, remedy="Thaw it.")
OTHER = InvalidInput("other.", thing="loss", remedy="Look.")


def three() -> list[Refusals]:
    store = PrefixStore("attachment", HashStore())
    return [Refusals(store, rank) for rank in range(3)]


def words(found: AutosyncError | None) -> str | None:
    return None if found is None else found.message


@pytest.mark.parametrize(
    "error",
    [
        FROZEN,
        OTHER,
        BudgetTooSmall("too small."),
        DeviceMemoryExceeded("full."),
        SynchronizationFailed("lost."),
    ],
)
def test_what_one_rank_posts_the_others_find(error: AutosyncError) -> None:
    first, second, _ = three()
    assert second.find() is None
    first.post(error)
    found = second.find()
    assert type(found) is type(error)
    assert found is not None
    assert found.message == f"rank 0 stopped: {error.message}"
    assert (found.thing, found.remedy) == (error.thing, error.remedy)


def test_the_first_cause_stays() -> None:
    first, second, third = three()
    first.post(FROZEN)
    second.post(OTHER)
    assert words(third.find()) == "rank 0 stopped: frozen."


def test_what_every_rank_refuses_stops_none() -> None:
    first, second, third = three()
    for each in (first, second):
        each.post(FROZEN)
    assert first.find() is second.find() is None
    assert words(third.find()) == "rank 0 stopped: frozen."


def test_what_a_rank_withdraws_is_found_no_more() -> None:
    first, second, third = three()
    first.post(FROZEN)
    second.withdraw()  # it has posted nothing
    assert words(third.find()) == "rank 0 stopped: frozen."
    first.withdraw()
    assert third.find() is None
    second.post(OTHER)
    assert words(third.find()) == "rank 1 stopped: other."


def test_errors_of_the_script_are_told_by_name() -> None:
    assert reported(FROZEN, "optimizer.step()") is FROZEN
    found = reported(AttributeError("no loss"), "optimizer.step()")
    assert type(found) is SynchronizationFailed
    assert found.message == "optimizer.step() ended with AttributeError: no loss"
    assert found.value == "AttributeError"
