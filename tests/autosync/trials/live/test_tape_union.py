"""Recorded iterations that run other modules, as one graph with frequencies."""

from datetime import timedelta

import pytest
import torch
from torch import Tensor, nn

from autosync.graph import Operation
from autosync.trials.live.control_group import ControlGroup
from autosync.trials.live.job import LiveJob
from autosync.trials.live.snapshot import take_snapshot
from autosync.trials.live.step_graph import RecordedJob, record_job
from autosync.trials.live.tape_union import mean_order, merged_order


class Exits(nn.Module):
    """Leaves after as many blocks as its input says."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor, depth: int) -> Tensor:
        for block in self.blocks[:depth]:
            x = torch.tanh(block(x))
        found: Tensor = self.head(x)
        return found


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, int]) -> None:
    optimizer.zero_grad()
    model(*batch).square().sum().backward()
    optimizer.step()


def recorded(depths: list[int]) -> RecordedJob:
    model = Exits()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    control: ControlGroup = None  # type: ignore[assignment]  # recording asks nobody
    job = LiveJob(
        step,
        model,
        optimizer,
        take_snapshot(model, [optimizer]),
        control,
        timedelta(seconds=1),
        ddp_options={"find_unused_parameters": True},
        batches=[(torch.ones(2, 4), depth) for depth in depths],
    )
    return record_job(job, None, "cpu")


def module_of(operation: Operation) -> str:
    return operation.name.rpartition(".")[0]


def test_parts_have_the_frequency_of_the_batches_that_run_them() -> None:
    found = recorded([1, 3, 2, 1])
    graph = found.graph
    frequency = {module_of(o): o.frequency for o in graph.operations}
    assert frequency == {"blocks.0": 1.0, "blocks.1": 0.5, "blocks.2": 0.25, "head": 1.0}
    assert [module_of(o) for o in graph.operations] == list(frequency)
    gradients = {v.name: v.frequency for v in graph.variables}
    assert gradients == {
        f"{module}.{kind}": share
        for module, share in (("blocks.0", 1), ("blocks.1", 0.5), ("blocks.2", 0.25), ("head", 1))
        for kind in ("weight", "bias")
    }
    order = [graph.variables[v].name.rpartition(".")[0] for v in graph.gradient_order]
    assert list(dict.fromkeys(order)) == ["head", "blocks.0", "blocks.1", "blocks.2"]
    backward = [module_of(graph.operations[o]) for o in graph.backward_order]
    assert backward == ["head", "blocks.2", "blocks.1", "blocks.0"]
    for variable, operation in enumerate(graph.gradient_after):
        assert graph.variables[variable].name.startswith(module_of(graph.operations[operation]))
    assert all(seconds > 0 for seconds in found.profile.forward_seconds)


def test_a_model_that_is_always_the_same_has_no_frequencies() -> None:
    graph = recorded([2, 2, 2]).graph
    names = [module_of(o) for o in graph.operations]
    assert names == ["blocks.0", "blocks.1", "head"]
    assert {o.frequency for o in graph.operations} == {1.0}
    assert {v.frequency for v in graph.variables} == {1.0}


@pytest.mark.parametrize(
    ("sequences", "union"),
    [
        (["abc"], "abc"),
        (["abd", "acd"], "abcd"),
        (["xa", "a", "ay"], "xay"),
        (["abc", "c", ""], "abc"),
    ],
)
def test_orders_are_merged(sequences: list[str], union: str) -> None:
    assert "".join(merged_order(sequences)) == union


def test_the_mean_order_breaks_ties_as_the_last() -> None:
    assert mean_order([[0, 1, 2], [1, 0, 2]]) == [1, 0, 2]
    assert mean_order([[2, 0, 1], [2, 1, 0], [0, 2, 1]]) == [2, 0, 1]
