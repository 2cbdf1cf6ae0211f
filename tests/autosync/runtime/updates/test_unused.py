"""Variables that some or all ranks leave out of an iteration."""

import pytest
import torch
from torch import Tensor, nn

from autosync.strategy import Schedule
from tests.autosync.runtime.cases import Case, attached, make_optimizer, worst_difference
from tests.autosync.runtime.parts import without_sync
from tests.autosync.runtime.ranks import Ranks

OVERLAP = Schedule("priority", slice_bytes=100, overlap_forward=True)
CASES = tuple(
    Case(optimizer=optimizer, method=method, partition=partition, schedule=schedule, groups=3)
    for optimizer, method, partition, schedule in (
        ("sgd", "all_reduce", "whole", Schedule()),
        ("adamw", "all_reduce", "even", OVERLAP),
        ("adamw", "ps", "whole", Schedule()),
        ("sgd", "zero", "whole", OVERLAP),
        ("adamw", "zero", "even", OVERLAP),
        ("adamw", "rs", "uneven", OVERLAP),
    )
)
USES = (((0, 1), (0,)), ((1,), (1,)), ((0,), (0,)), ((), (0, 1)), ((1,), (0,)))
"""The branches that each rank takes in each iteration. Branch 2 is never taken."""


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first = nn.Linear(3, 6)
        self.branches = nn.ModuleList(nn.Linear(6, 2) for _ in range(3))

    def forward(self, x: Tensor, taken: tuple[int, ...]) -> Tensor:
        x = torch.tanh(self.first(x))
        return sum((self.branches[i](x).square().sum() for i in taken), x.sum())


def inputs(iteration: int, rank: int) -> Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * iteration + rank))


def alone(case: Case, passes: list[list[tuple[Tensor, tuple[int, ...]]]]) -> nn.Module:
    """torch by itself: the gradients of an iteration's passes add up, halved."""
    model = Branches()
    optimizer = make_optimizer(case.optimizer, model)
    for iteration in passes:
        optimizer.zero_grad()
        for x, taken in iteration:
            (model(x, taken) / 2).backward()
        optimizer.step()
    return model


def left_out(rank: int, world: int, cases: tuple[Case, ...]) -> list[tuple[float, list[float]]]:
    found = []
    for case in cases:
        model = Branches()
        _, optimizer, attachment = attached(case, world, model=model)
        for iteration, taken in enumerate(USES):
            optimizer.zero_grad()
            model(inputs(iteration, rank), taken[rank]).backward()
            optimizer.step()
        attachment.detach()
        passes = [[(inputs(i, r), taken[r]) for r in range(2)] for i, taken in enumerate(USES)]
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        found.append((worst_difference(model, alone(case, passes)), weights.tolist()))
        start = Branches().branches[2]
        assert worst_difference(model.branches[2], start) == 0.0
        assert not any(optimizer.state.get(p) for p in model.branches[2].parameters())
    return found


def test_what_no_rank_used_is_left_alone(pair: Ranks) -> None:
    """Weight decay, momentum and step counts included."""
    for case, answers in zip(CASES, zip(*pair.run(left_out, CASES), strict=True), strict=True):
        assert max(difference for difference, _ in answers) < 2e-6, case
        assert answers[0][1] == answers[1][1], case


def accumulated(rank: int, world: int, cases: tuple[Case, ...]) -> list[float]:
    """Branch 0 runs under no_sync only, branch 1 in the synchronized pass only."""
    found = []
    for case in cases:
        model = Branches()
        _, optimizer, attachment = attached(case, world, model=model)
        for iteration in range(3):
            optimizer.zero_grad()
            with without_sync(model):
                model(inputs(iteration, rank), (0,)).backward()
            model(inputs(iteration + 50, rank), (1,)).backward()
            optimizer.step()
        attachment.detach()
        passes: list[list[tuple[Tensor, tuple[int, ...]]]] = [
            [(inputs(i + 50 * b, r), (b,)) for b in range(2) for r in range(2)] for i in range(3)
        ]
        found.append(worst_difference(model, alone(case, passes)))
    return found


def test_gradients_of_earlier_passes_are_not_lost(pair: Ranks) -> None:
    for differences in pair.run(accumulated, CASES):
        assert max(differences) < 2e-6, dict(zip(CASES, differences, strict=True))


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError(f"the user's own error behind {self.inner(x).shape}")


def broken(rank: int, world: int) -> str:
    case = Case(schedule=OVERLAP)
    _, _, attachment = attached(case, world, model=(model := Broken()))
    with pytest.raises(ValueError, match="own error") as caught:
        model(torch.randn(4, 3))
    attachment.detach()
    return str(caught.value)


def test_an_error_in_the_first_forward_is_the_users_own(pair: Ranks) -> None:
    assert len(pair.run(broken)) == 2
