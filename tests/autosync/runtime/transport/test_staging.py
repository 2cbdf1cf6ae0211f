"""The way of a GPU's messages with host memory as the device: threads that issue, buffers between
device and backend, one order for all. The order on streams needs a GPU: device/test_streams.py."""

from collections.abc import Iterator

import pytest
import torch

from autosync.codes import Op
from autosync.runtime.transport.base import Operation
from autosync.strategy import Schedule
from tests.autosync.runtime.cases import Case
from tests.autosync.runtime.compression import test_encodings, test_factors, test_rows
from tests.autosync.runtime.execution.test_exact import HALVED, IDLE, check_exact
from tests.autosync.runtime.execution.test_training import clipped
from tests.autosync.runtime.ranks import Ranks, ranks
from tests.autosync.runtime.training import OVERLAP, run_cases, train_plain
from tests.autosync.runtime.updates.test_optimizer_state import resumed, saved_at_once

METHODS = ("all_reduce", "tree", "ps", "byteps", "rs", "zero", "mixed")


@pytest.fixture(scope="module")
def staged() -> Iterator[Ranks]:
    with ranks(2, way="staged") as made:
        yield made


def test_equals_single_process(as_on_gpus: Ranks) -> None:
    """Every message ran once an iteration, each queue in the order of the plan."""
    cases = [
        Case(method=method, partition=partition, schedule=schedule, groups=3, iterations=2)
        for method in METHODS
        for partition, schedule in (("whole", Schedule()), ("uneven", OVERLAP))
    ]
    cases += [Case(method=method, schedule=IDLE, groups=3, iterations=2) for method in HALVED]
    check_exact(as_on_gpus, cases)


def test_clipping_and_saving_and_resuming_through_host_memory(staged: Ranks) -> None:
    parted = Case(optimizer="adamw", method="mixed", partition="even", groups=4, schedule=OVERLAP)
    for function in (clipped, saved_at_once, resumed):
        for differences in staged.run(run_cases, function, (parted,)):
            assert max(differences) < 3e-6, function
    for differences in staged.run(run_cases, train_plain, (Case(model="cnn", schedule=OVERLAP),)):
        assert max(differences) < 3e-6, "module buffers"


def test_rows_factors_and_encodings(staged: Ranks) -> None:
    for way in test_rows.WAYS:
        for difference, _ in staged.run(test_rows.run, way, "momentum", OVERLAP, False, None):
            assert difference < 2e-6, way
    for difference, _ in staged.run(test_factors.run, "adamw", OVERLAP, False, None, False):
        assert difference < 2e-6, "factors"
    for method in ("all_reduce", "sharded", "server"):
        for worst, finer, _ in staged.run(test_encodings.excess, method, "bf16"):
            assert 0 < worst <= 1, method
            assert finer
    for first, last, lost, bias in staged.run(test_encodings.feed_back, 20):
        assert last < 0.3 * first, "PowerSGD"
        assert lost < 1e-3
        assert bias < 1e-3


@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize("size", [5, 6])
def test_sent_and_received_parts_cover_the_message(members: int, size: int) -> None:
    """Every element is given by somebody; whoever is owed it gets it and nothing else."""
    for operation in (Op.ALL_REDUCE, Op.REDUCE, Op.BROADCAST, Op.REDUCE_SCATTER, Op.ALL_GATHER,
                      Op.PUSH, Op.PULL):  # fmt: skip
        roles = [Operation(operation, place, 1, members, size, 0) for place in range(members)]
        padded = roles[0].padded
        given = [touched(role.sent(), padded) for role in roles]
        gotten = [touched(role.received(), padded) for role in roles]
        assert bool(torch.stack(given).any(0)[:size].all()), operation
        known = [a | b for a, b in zip(given, gotten, strict=True)]
        match operation:
            case Op.ALL_REDUCE | Op.BROADCAST | Op.PULL | Op.ALL_GATHER:
                assert all(bool(one[:size].all()) for one in known), operation
            case Op.REDUCE | Op.PUSH:
                assert [bool(one.any()) for one in gotten] == [
                    place == 1 for place in range(members)
                ]
            case Op.REDUCE_SCATTER:
                assert torch.equal(torch.stack(gotten).sum(0), torch.ones(padded))
        if operation in (Op.ALL_GATHER, Op.BROADCAST, Op.PULL):
            overlap = [a & b for a, b in zip(given, gotten, strict=True)]
            assert not torch.stack(overlap).any(), "what a rank gives is not written over"


def touched(spans: list[slice], size: int) -> torch.Tensor:
    found = torch.zeros(size, dtype=torch.bool)
    for span in spans:
        found[span] = True
    return found
