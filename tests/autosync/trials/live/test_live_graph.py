"""A running job's step as a graph: what hooks on its modules record."""

from datetime import timedelta

import torch
from torch import Tensor, nn

from autosync.module_borders import borders_of, module_of
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
