"""Parameters that are read while their new values are on the way: by whom no pass was seen to."""

import copy
import io
from collections.abc import Callable
from threading import Event

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector
from torch.optim.swa_utils import AveragedModel

from autosync.runtime.layout.records import MessageRecord
from tests.autosync.runtime.beside_ddp import PLANS, Script, beside_ddp, complete_late, follow
from tests.autosync.runtime.cases import (
    Case,
    attached,
    gap,
    make_model,
    make_optimizer,
    worst_difference,
)
from tests.autosync.runtime.ranks import Ranks

OVERLAPPING = [name for name, case in PLANS.items() if case.schedule.overlap_forward]


class Branching(nn.Module):
    """The first forward reads the weights in their owner, later ones read them by themselves,
    before any owner ran."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.table = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.table.weight
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls % 3 == 1:
            x = torch.tanh(self.table(x)) + self.tied.bias
        elif self.calls % 3 == 2:
            x = nn.functional.linear(x, self.tied.weight.t() * 2.0, self.table.bias)
            x = x + self.tied.bias
        else:
            x = self.tied(x) @ self.table.weight[:, :6] + self.table.bias
        out: Tensor = self.head(x)
        return out


def nothing(rank: int) -> Script:
    return lambda model, moment, iteration: None


def branches(rank: int, world: int, case: Case) -> float:
    return beside_ddp(rank, world, case, nothing, Branching)


@pytest.mark.parametrize("plan", PLANS)
def test_a_branch_that_no_pass_was_seen_to_take(pair: Ranks, plan: str) -> None:
    differences = pair.run(branches, PLANS[plan])
    assert max(differences) < 3e-6, differences


def average(rank: int, world: int, case: Case) -> tuple[float, list[float]]:
    """torch's average of weights, taken right behind step(): the difference from DDP's."""
    averages = []
    for distributed in (True, False):
        model = make_model(case.model)
        optimizer = make_optimizer(case.optimizer, model)
        network, attachment = model, None
        if distributed:
            _, _, attachment = attached(case, world, model=model, optimizer=optimizer)
            complete_late(attachment.engine)
        else:
            network = DistributedDataParallel(model)
        averaged = AveragedModel(model)

        def script(model: nn.Module, moment: str, iteration: int, to: nn.Module = averaged) -> None:
            if moment == "stepped":
                to.update_parameters(model)  # type: ignore[operator]

        follow(network, optimizer, case.iterations, rank, script)
        if attachment is not None:
            attachment.detach()
        averages.append(averaged)
    weights = parameters_to_vector(averages[0].parameters()).tolist()
    return worst_difference(*averages), weights


@pytest.mark.parametrize("plan", PLANS)
def test_an_average_behind_step(pair: Ranks, plan: str) -> None:
    (first, weights), (second, others) = pair.run(average, PLANS[plan])
    assert max(first, second) < 3e-6
    assert weights == others


def saved(p: nn.Parameter) -> Tensor:
    file = io.BytesIO()
    torch.save(p, file)
    file.seek(0)
    loaded: Tensor = torch.load(file, weights_only=True)
    return loaded


READS: dict[str, Callable[[nn.Parameter], Tensor]] = {
    "data": lambda p: p.data,
    "detach": lambda p: p.detach(),
    "numpy": lambda p: torch.from_numpy(p.detach().numpy()),
    "copy": copy.deepcopy,
    "pickle": saved,
    "list": lambda p: torch.stack([p, p])[0],
    "foreach": lambda p: torch._foreach_mul([p], 1.0)[0],
    "keyword": lambda p: torch.add(input=torch.zeros(()), other=p),
    "in place": lambda p: torch.zeros_like(p).copy_(p),
    "storage": lambda p: (
        torch.tensor(p.untyped_storage().tolist(), dtype=torch.uint8)
        .view(torch.float32)
        .view(p.shape)
    ),
}


def readings(rank: int, world: int, case: Case) -> dict[str, float]:
    """How far what each way reads right behind step() is from the values at the end."""
    found = {}
    for name, read in READS.items():
        model, optimizer, attachment = attached(case, world)
        complete_late(attachment.engine)
        follow(model, optimizer, 1, rank, lambda *_: None)
        assert all(isinstance(p, nn.Parameter) for p in model.parameters())
        values = [read(p).detach().clone() for p in model.parameters()]
        attachment.detach()
        pairs = zip(values, model.parameters(), strict=True)
        found[name] = max(gap(a, b) for a, b in pairs)
        assert {type(p) for p in model.parameters()} == {nn.Parameter}
    return found


@pytest.mark.parametrize("plan", OVERLAPPING)
def test_every_way_to_read_waits(pair: Ranks, plan: str) -> None:
    for found in pair.run(readings, PLANS[plan]):
        assert max(found.values()) == 0.0, found


def unread(rank: int, world: int, case: Case) -> bool:
    """Nothing lands before the script has looked at what it may see without."""
    model, optimizer, attachment = attached(case, world)
    seen = Event()
    unpack = attachment.engine.completion.unpack

    def held_back(record: MessageRecord) -> None:
        seen.wait()
        unpack(record)

    attachment.engine.completion.__dict__["unpack"] = held_back
    follow(model, optimizer, 1, rank, lambda *_: None)
    for p in model.parameters():
        assert p.grad is None
        p.grad = None
        assert (p.dtype, p.requires_grad, p.is_leaf) == (torch.float32, True, True)
        assert p.numel() == p.shape.numel()
    owed = [type(p).__name__ for p in model.parameters()]
    seen.set()
    attachment.detach()
    return owed == ["PendingParameter"] * len(owed)


@pytest.mark.parametrize("plan", OVERLAPPING)
def test_operations_that_read_no_value_do_not_wait(pair: Ranks, plan: str) -> None:
    assert pair.run(unread, PLANS[plan]) == [True, True]
