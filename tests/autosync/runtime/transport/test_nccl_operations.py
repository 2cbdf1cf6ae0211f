"""What NCCL is asked for, seen by a group that only notes it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from autosync.codes import Op
from autosync.runtime.transport.base import Operation
from autosync.runtime.transport.nccl import NcclTransport, sum_operation

REDUCTIONS = {
    Op.ALL_REDUCE: "allreduce",
    Op.REDUCE: "reduce",
    Op.PUSH: "reduce",
    Op.REDUCE_SCATTER: "_reduce_scatter_base",
}


class Noting:
    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> Any:
            self.asked.append((name, given[-1]))
            return None if given[-1].asyncOp is False else SimpleNamespace(wait=lambda: None)

        return call


def asked(kind: Op, share: float | None, equal_shares: bool) -> tuple[str, Any]:
    group, wire = Noting(), torch.zeros(12)
    operation = Operation(kind, 1, 2, 4, 10, 0, share, equal_shares)
    NcclTransport(group).prepare(operation, wire, wire)().wait()
    ((name, options),) = group.asked
    assert options.asyncOp is False  # on the stream that issues it
    return name, options


@pytest.mark.parametrize("operation", REDUCTIONS)
def test_reductions_multiply_by_shares(operation: Op) -> None:
    expected: list[tuple[float | None, bool, Any]] = [
        (None, True, dist.ReduceOp.SUM),
        (0.25, True, dist.ReduceOp.AVG),
        (0.25, False, dist.ReduceOp.PREMUL_SUM),
        (0.125, True, dist.ReduceOp.PREMUL_SUM),  # of two teams
    ]
    for share, alike, kind in expected:
        name, options = asked(operation, share, alike)
        assert name == REDUCTIONS[operation]
        assert options.reduceOp == kind, (share, alike)
        if kind == dist.ReduceOp.PREMUL_SUM:
            assert options.reduceOp.__getstate__()[1] == share


@pytest.mark.parametrize("operation", [Op.BROADCAST, Op.PULL, Op.ALL_GATHER])
def test_values_are_not_multiplied(operation: Op) -> None:
    _, options = asked(operation, 0.25, True)
    assert not hasattr(options, "reduceOp")


@pytest.mark.parametrize("world", [3, 8, 49, 98, 392])
def test_equal_shares_are_an_average(world: int) -> None:
    """Also where 1 / world * world is less than 1: NCCL multiplies bf16 by no other shares."""
    found: Any = sum_operation(1.0 / world, world, True)
    assert found == dist.ReduceOp.AVG
