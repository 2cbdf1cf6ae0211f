"""All ranks go on alike: what differs between them, or what one refuses, ends it on all."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import PropertyMock, patch

import pytest
import torch
from torch._C._distributed_c10d import HashStore
from torch.distributed.distributed_c10d import PrefixStore

import autosync
from autosync.bundle import Bundle
from autosync.errors import (
    AutosyncError,
    BudgetTooSmall,
    DeviceMemoryExceeded,
    InvalidInput,
    NotSupported,
)
from autosync.runtime.transport.agreement import ranks_meet
from autosync.runtime.transport.base import SynchronizationFailed
from autosync.runtime.transport.refusals import Refusals, reported
from tests.autosync.runtime.cases import Case, make_model, make_optimizer
from tests.autosync.runtime.distributing import DDP, bundle_of
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.training import OVERLAP

CASES = {
    "all_reduce": Case(),
    "overlapping reduce-scatter": Case(method="rs", schedule=OVERLAP),
    "ZeRO-1": Case(method="zero", schedule=OVERLAP),
    "parameter server": Case(method="ps"),
    "ddp": DDP,
}


def shipped(case: Case, world: int = 2) -> Bundle:
    """For ranks on a host each."""
    return bundle_of(case, make_model(case.model), world)


Given = tuple[Bundle | Path, dict[str, Any]]


def refused(rank: int, world: int, each: list[list[Given]]) -> list[str]:
    """The error of every attempt, in which rank r is given the attempt's r-th."""
    found = []
    for attempt in each:
        given, arguments = attempt[rank]
        model = make_model("mlp")
        with pytest.raises(AutosyncError) as caught:
            autosync.distribute(model, make_optimizer("sgd", model), given, **arguments)
        found.append(str(caught.value))
    return found


def attempts(pool: Ranks, *each: list[Given]) -> list[tuple[str, str]]:
    mine, other = pool.run(refused, list(each))
    return list(zip(mine, other, strict=True))


@pytest.mark.parametrize("other", CASES)
def test_another_bundle_on_one_rank_is_refused_on_every_rank(pair: Ranks, other: str) -> None:
    plan = "all_reduce" if other != "all_reduce" else "ZeRO-1"
    one, two = shipped(CASES[plan]), shipped(CASES[other])
    elsewhere = shipped(CASES[other], 4)
    for both in attempts(pair, [(one, {}), (two, {})], [(elsewhere, {}), (two, {})]):
        assert both[0] == both[1]
        assert "different bundles" in both[0]
        assert "rank 0" in both[0]
        assert "rank 1" in both[0]


def test_differing_bundles_and_options_are_named(pair: Ranks) -> None:
    fits, more = shipped(CASES["ZeRO-1"]), shipped(CASES["ZeRO-1"], 4)
    renamed = replace(fits, hosts=("elsewhere", *fits.hosts[1:]))
    found = attempts(
        pair,
        [(fits, {}), (more, {})],
        [(fits, {}), (shipped(CASES["ddp"]), {})],
        [(fits, {}), (shipped(CASES["parameter server"]), {})],
        [(fits, {}), (renamed, {})],
        [(fits, {"max_grad_norm": 1.0}), (fits, {})],
        [(fits, {}), (fits, {"ddp_options": {"static_graph": True}})],
    )
    words = (
        "number of ranks is 2",
        "engine is",
        "plan is",
        "variables and hosts is",
        "max_grad_norm is 1.0 on rank 0, None on rank 1",
        "ddp_options['static_graph'] is",
    )
    for both, named in zip(found, words, strict=True):
        assert both[0] == both[1]
        assert named in both[0]


def test_a_bundle_that_one_rank_cannot_read_stops_all(pair: Ranks, tmp_path: Path) -> None:
    fits = shipped(CASES["all_reduce"])
    ((other, mine),) = attempts(pair, [(fits, {}), (tmp_path / "gone.json", {})])
    assert "cannot read the bundle" in mine
    assert "`autosync.tune(save=...)`, which writes it on rank 0's host alone" in mine
    assert other.startswith("rank 1 cannot begin: cannot read the bundle")


def own_devices(rank: int, world: int, given: Bundle) -> str:
    """What belongs to a rank may differ: torch itself refuses devices of a model on the host."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = make_model("mlp")
    options = {"device_ids": [rank]}
    with pytest.raises(ValueError, match="device_ids") as caught:
        autosync.distribute(model, make_optimizer("sgd", model), given, ddp_options=options)
    return type(caught.value).__name__


def test_devices_may_differ(pair: Ranks) -> None:
    assert pair.run(own_devices, shipped(CASES["ddp"])) == ["ValueError"] * 2


def test_an_error_of_every_rank_is_its_own(pair: Ranks, tmp_path: Path) -> None:
    gone = tmp_path / "gone.json"
    ((one, two),) = attempts(pair, [(gone, {}), (gone, {})])
    assert one == two
    assert one.startswith("cannot read the bundle")


def another_buffer(rank: int, world: int, given: Bundle) -> str:
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = make_model("mlp")
    model.register_buffer("seen", torch.zeros(3 + rank))
    with pytest.raises(AutosyncError) as caught:
        autosync.distribute(model, make_optimizer("sgd", model), given)
    return str(caught.value)


@pytest.mark.parametrize("case", ["all_reduce", "ddp"])
def test_a_buffer_of_another_shape_is_refused_on_every_rank(pair: Ranks, case: str) -> None:
    one, two = pair.run(another_buffer, shipped(CASES[case]))
    assert one == two
    assert "'seen' is torch.float32[3] on rank 0 and torch.float32[4] on rank 1" in one


def on_another_device(rank: int, world: int, given: Bundle) -> str:
    """As where rank 0's model is on its GPU, and rank 1's was forgotten in host memory."""
    model = make_model("mlp")
    backend = "gloo" if rank else "nccl"
    patched = patch("autosync.runtime.distributed.backend_on", lambda group, device: backend)
    with patched, pytest.raises(InvalidInput) as caught:
        autosync.distribute(model, make_optimizer("sgd", model), given)
    return str(caught.value)


@pytest.mark.parametrize("case", ["all_reduce", "ddp"])
def test_a_model_that_another_backend_serves_is_refused_on_every_rank(
    pair: Ranks, case: str
) -> None:
    one, two = pair.run(on_another_device, shipped(CASES[case]))
    assert one == two
    assert "backend for the model's device is 'nccl' on rank 0, 'gloo' on rank 1" in one


# --- refusals through a store

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
def test_a_refusal_of_one_rank_reaches_the_others(error: AutosyncError) -> None:
    first, second, _ = three()
    assert second.find() is None
    first.post(error, final=True)
    assert first.find() is None
    found = second.find()
    assert type(found) is type(error)
    assert found is not None
    assert found.message == f"rank 0 stopped: {error.message}"
    assert (found.thing, found.remedy) == (error.thing, error.remedy)


def test_an_error_of_a_call_ends_no_rank_that_can_go_on() -> None:
    first, second, _ = three()
    first.post(FROZEN)
    assert second.find() is None
    assert words(second.cause()) == "rank 0 stopped: frozen."
    assert first.cause() is None


def test_an_error_of_a_call_is_final_when_its_rank_leaves() -> None:
    first, second, _ = three()
    first.leave()
    assert second.find() is None
    first.post(FROZEN)
    first.leave()
    assert words(second.find()) == "rank 0 stopped: frozen."


def test_the_first_cause_stays() -> None:
    first, second, third = three()
    for final in (False, True):
        first.post(FROZEN, final)
        second.post(OTHER, final)
        assert words(third.cause()) == "rank 0 stopped: frozen."


def test_an_error_posted_by_every_rank_stops_none() -> None:
    first, second, third = three()
    for each in (first, second):
        each.post(FROZEN)
        each.leave()
    assert first.find() is second.find() is None
    assert words(third.find()) == "rank 0 stopped: frozen."


def test_a_withdrawn_error_no_longer_reaches_the_others() -> None:
    first, second, third = three()
    first.post(FROZEN)
    second.withdraw()  # it has posted nothing
    assert words(third.cause()) == "rank 0 stopped: frozen."
    first.withdraw()
    first.leave()
    assert third.cause() is None
    second.post(OTHER)
    assert words(third.cause()) == "rank 1 stopped: other."


def test_of_two_errors_in_a_row_none_is_left() -> None:
    first, second, _ = three()
    first.post(FROZEN)
    first.post(OTHER)
    assert words(second.cause()) == "rank 0 stopped: other."
    first.withdraw()
    assert second.cause() is None


def test_an_error_may_be_withdrawn_while_a_thread_looks() -> None:
    first, second, _ = three()
    second.post(OTHER)
    first.post(FROZEN)
    reads = PropertyMock(side_effect=[first._mine, ""])
    with patch.object(Refusals, "_mine", reads, create=True):
        assert words(first.cause()) == "rank 1 stopped: other."


def test_a_refusal_is_not_withdrawn() -> None:
    """A thread of the runtime may post it while the script's `step()` returns, which withdraws what
    the script has caught."""
    first, second, _ = three()
    first.post(FROZEN, final=True)
    first.withdraw()
    assert words(second.find()) == "rank 0 stopped: frozen."


def test_a_dropped_iteration_ends_those_that_stepped_it() -> None:
    first, second, third = three()
    first.drop(4)
    assert "rank 0 stopped: the gradients of a backward pass" in str(words(second.find(4)))
    assert third.find(3) is first.find(4) is None
    first.post(FROZEN)
    first.drop(5)
    assert words(second.find(5)) == "rank 0 stopped: frozen."
    assert second.find(4) is None


def test_errors_of_the_script_are_told_by_name() -> None:
    assert reported(FROZEN, "optimizer.step()") is FROZEN
    found = reported(AttributeError("no loss"), "optimizer.step()")
    assert type(found) is SynchronizationFailed
    assert found.message == "optimizer.step() ended with AttributeError: no loss"
    assert found.value == "AttributeError"


def test_ranks_that_gloo_does_not_join_are_told_of_its_interface() -> None:
    """Where hosts know their own names by a loopback address, NCCL works and gloo does not."""
    words = "Gloo connectFullMesh failed with [pair.cc:152] connecting: remote=[127.0.1.1]"
    with pytest.raises(SynchronizationFailed, match="set GLOO_SOCKET_IFNAME"), ranks_meet():
        raise RuntimeError(words)
    with pytest.raises(SynchronizationFailed) as died, ranks_meet():
        raise RuntimeError("Connection closed by peer")
    assert "GLOO_SOCKET_IFNAME" not in str(died.value)
