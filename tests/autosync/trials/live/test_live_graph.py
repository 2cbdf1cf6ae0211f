"""A running job's step as a graph: what hooks on its modules record."""

from datetime import timedelta

import pytest
import torch
from torch import Tensor, nn

from autosync.module_borders import borders_of, module_of
from autosync.runtime.swapping.arena import Arena
from autosync.runtime.swapping.host_swapper import swap_to_host
from autosync.swap_schedule.scheduling import least_budget_bytes
from autosync.swap_schedule.swap_choice import RESERVE, Swap, budget_within
from autosync.trials.live.control_group import ControlGroup
from autosync.trials.live.live_graph import record_job
from autosync.trials.live.live_job import LiveJob
from autosync.trials.live.snapshot import take_snapshot

BATCH = 2


class Outer(nn.Module):
    """Owns a variable, and a module with variables that it calls twice."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.inner = nn.Linear(8, 8)
        self.narrow = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        scaled = self.inner(self.inner(x * self.scale))
        found: Tensor = torch.cat([self.narrow(scaled)] * 4, dim=1)
        return found


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(BATCH, 8)).sum().backward()
    optimizer.step()


def test_a_module_that_holds_others_has_its_own_output() -> None:
    model = Outer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    control: ControlGroup = None  # type: ignore[assignment]  # recording asks nobody
    before = take_snapshot(model, [optimizer])
    job = LiveJob(step, model, optimizer, before, control, timedelta(seconds=1))
    graph = record_job(job, None, "cpu").graph
    operations = graph.operations
    row_bytes = BATCH * 4
    assert [(each.type, each.output_bytes) for each in operations] == [
        ("outer", 12 * row_bytes),
        ("linear", 8 * row_bytes),
        ("linear", 8 * row_bytes),
        ("linear", 3 * row_bytes),
    ]
    assert [module_of(each) for each in operations] == ["", "inner", "inner", "narrow"]
    assert borders_of(graph, "inner").operations == (1, 2)
    assert borders_of(graph, "narrow").entering == ((2, 3),)


ROOMY = 1 << 33
ROWS = 2048


def wide() -> tuple[nn.Module, torch.optim.Optimizer]:
    layers = [nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(6)]
    model = nn.Sequential(*layers)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def wide_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(ROWS, 256)).square().mean().backward()
    optimizer.step()


def least_bytes(with_state: bool) -> int:
    model, optimizer = wide()
    with Arena(ROOMY):
        swapper = swap_to_host(model, Swap(ROOMY, with_state), [optimizer])
        for _ in range(4):
            wide_step(model, optimizer)
    assert swapper.recorded is not None
    return least_budget_bytes(swapper.recorded.moments)


@pytest.mark.parametrize("with_state", [False, True])
def test_where_a_plain_iteration_has_no_room_as_much_is_swapped_as_needed(with_state: bool) -> None:
    least = least_bytes(with_state)
    memory = int(least * 1.02 / (1 - RESERVE))
    assert budget_within(memory) >= least
    if with_state:
        assert budget_within(memory) < least_bytes(False)
    model, optimizer = wide()
    values = [value.detach().clone() for value in model.parameters()]
    control: ControlGroup = None  # type: ignore[assignment]  # recording asks nobody
    with Arena(memory) as arena:
        arena.count(model.parameters())
        before = take_snapshot(model, [optimizer])
        job = LiveJob(wide_step, model, optimizer, before, control, timedelta(seconds=1))
        recorded = record_job(job, None, "arena")
    assert ("optimizer state" in recorded.profile.note) is with_state
    assert "swapped activations" in recorded.profile.note
    assert recorded.optimizer.state_tensors == 2
    assert all(map(torch.equal, values, model.parameters()))
    assert not any(optimizer.state.values())
