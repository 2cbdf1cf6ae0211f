"""Variables that some or all ranks leave out of an iteration."""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from threading import current_thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from autosync import TrainingState
from autosync.runtime.execution import monitor
from autosync.runtime.transport.base import SynchronizationFailed
from autosync.runtime.transport.value_agreement import THREAD
from autosync.runtime.updates.unused_variables import SLOTS, UnusedVariables
from autosync.strategy import Schedule
from tests.autosync.runtime.cases import Case, attached, make_optimizer, worst_difference
from tests.autosync.runtime.parts import without_sync
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.training import OVERLAP

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


def test_parameters_that_no_rank_used_are_unchanged(pair: Ranks) -> None:
    """Weight decay, momentum and step counts included."""
    for case, answers in zip(CASES, zip(*pair.run(left_out, CASES), strict=True), strict=True):
        assert max(difference for difference, _ in answers) < 2e-6, case
        assert answers[0][1] == answers[1][1], case


def frozen_at_first(
    rank: int, world: int, case: Case, folder: str, resumes: bool
) -> tuple[float, list[float]]:
    """Branch 2 is frozen until behind a checkpoint in parts. resumes: go on from it."""
    model = Branches()
    _, optimizer, attachment = attached(case, world, model=model)
    late = model.branches[2].requires_grad_(False)
    state = {"training": TrainingState(model, optimizer)}
    if resumes:
        load(state, checkpoint_id=folder)
    for iteration in range(2 if resumes else 0, 3):
        if iteration == 2:
            if not resumes:
                save(state, checkpoint_id=folder)
            late.requires_grad_(True)
        optimizer.zero_grad()
        model(inputs(iteration, rank), (0, 1, 2)[: iteration + 1]).backward()
        optimizer.step()
    attachment.detach()
    passes = [[(inputs(i, r), (0, 1, 2)[: i + 1]) for r in range(2)] for i in range(3)]
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return worst_difference(model, alone(case, passes)), weights.tolist()


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_makes_no_state_of_what_is_frozen(
    pair: Ranks, tmp_path: Path, case: Case
) -> None:
    """Such a state would count a step that nobody has taken."""
    first = pair.run(frozen_at_first, case, str(tmp_path), False)
    assert max(difference for difference, _ in first) < 2e-6
    assert pair.run(frozen_at_first, case, str(tmp_path), True) == first


def in_two_passes(
    rank: int, world: int, cases: tuple[Case, ...], synchronized: bool
) -> list[float]:
    """Branch 0 in the first pass, branch 1 in the second, branch 2 in neither. synchronized: the
    first one, too, in place of no_sync."""
    found = []
    for case in cases:
        model = Branches()
        _, optimizer, attachment = attached(case, world, model=model)
        for iteration in range(3):
            optimizer.zero_grad()
            with nullcontext() if synchronized else without_sync(model):
                model(inputs(iteration, rank), (0,)).backward()
            model(inputs(iteration + 50, rank), (1,)).backward()
            optimizer.step()
        attachment.detach()
        passes: list[list[tuple[Tensor, tuple[int, ...]]]] = [
            [(inputs(i + 50 * b, r), (b,)) for b in range(2) for r in range(2)] for i in range(3)
        ]
        found.append(worst_difference(model, alone(case, passes)))
        assert worst_difference(model.branches[2], Branches().branches[2]) == 0.0
    return found


TWICE = (CASES[0], Case(optimizer="adamw", method="rs", partition="even"))
"""Plans that take several synchronized passes before one step."""


@pytest.mark.parametrize(("cases", "synchronized"), [(CASES, False), (TWICE, True)])
def test_what_two_passes_before_a_step_left_out(
    pair: Ranks, cases: tuple[Case, ...], synchronized: bool
) -> None:
    """Gradients of the first are not lost, and what both left out is unchanged."""
    for differences in pair.run(in_two_passes, cases, synchronized):
        assert max(differences) < 2e-6, dict(zip(cases, differences, strict=True))


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


HOLDERS = ((0, 1, 2), (0, 1, 2), (0, 2), (1,))
"""Of the plan's variables: rank 1 does not hold the third, and alone the last."""

HELD = ((0, 1, 2), (0, 1, 3), (0, 1, 2))
"""By rank."""


def posts_of(store: Store) -> list[UnusedVariables]:
    return [
        UnusedVariables(store, rank, 3, numbers, [HOLDERS[number] for number in numbers])
        for rank, numbers in enumerate(HELD)
    ]


def test_bitmaps_of_one_iteration() -> None:
    """Numbers are each rank's own. Bitmaps of iterations before do not count."""
    ranks = posts_of(HashStore())
    for iteration in range(2 * SLOTS + 1):
        ranks[0].post(iteration, [0, 1, 2])
        ranks[2].post(iteration, [0, 2])
        assert ranks[0].by_every_rank([2]) == {2}, "both holders have left it out"
        assert not ranks[0].by_every_rank([0, 1])
        ranks[1].post(iteration, [0, 2] if iteration % 2 else [])
        assert ranks[0].by_every_rank([0, 1, 2]) == ({0, 2} if iteration % 2 else {2})
        assert ranks[1].by_every_rank([0, 1, 2]) == ({0, 2} if iteration % 2 else set())
        assert ranks[2].by_every_rank([0, 1]) == ({0} if iteration % 2 else set())


def test_bitmaps_are_read_behind_the_sums() -> None:
    """On NCCL the host completes a message that other ranks have not come to."""
    ranks = posts_of(HashStore())
    ranks[0].post(0, [0, 1])

    def arrived() -> None:
        ranks[1].post(0, [0])
        ranks[2].post(0, [0, 1])

    assert ranks[0].by_every_rank([0, 1], arrived) == {0}


def test_a_bitmap_that_was_written_over_is_not_guessed() -> None:
    ranks = posts_of(HashStore())
    ranks[0].post(0, [0])
    for iteration in (0, SLOTS):
        ranks[1].post(iteration, [0])
    with pytest.raises(SynchronizationFailed, match=f"rank 1 is {SLOTS} iterations ahead"):
        ranks[0].by_every_rank([0])


def counted_operations(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counts: Counter[str] = Counter()

    def counting(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Store, *arguments: Any) -> Any:
            if current_thread().name != THREAD:  # which looks once a second
                counts[name] += 1
            return plain(self, *arguments)

        return call

    for name in ("set", "get", "add", "append", "check", "wait", "multi_get", "delete_key"):
        plain = getattr(PrefixStore, name)
        monkeypatch.setattr(PrefixStore, name, counting(name, plain))
    return counts


class Heads(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first = nn.Linear(3, 6)
        self.heads = nn.ModuleList(nn.Linear(6, 2) for _ in range(heads))

    def forward(self, x: Tensor, taken: list[int]) -> Tensor:
        x = torch.tanh(self.first(x))
        return sum((self.heads[i](x).square().sum() for i in taken), x.sum())


def store_operations(rank: int, world: int, case: Case, heads: int) -> list[Counter[str]]:
    """Of an iteration, where every rank leaves heads out and where none does."""
    found = []
    for used in (2, heads):
        model = Heads(heads)
        _, optimizer, attachment = attached(case, world, model=model)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(monitor, "LOOK_SECONDS", 60.0)  # none that waits looks for refusals
            for iteration in range(3):
                optimizer.zero_grad()
                loss = model(inputs(iteration, rank), [(rank + i) % heads for i in range(used)])
                counts = counted_operations(patch) if iteration == 2 else Counter()
                loss.backward()
                optimizer.step()
                attachment.engine.flush()
            found.append(counts)
        attachment.detach()
    return found


def test_store_operations_do_not_grow_with_unused_variables(pair: Ranks) -> None:
    whole, by_bucket = CASES[0], CASES[4]
    for heads in (6, 40):
        for left_out, all_used in pair.run(store_operations, whole, heads):
            assert left_out == Counter(set=1, multi_get=1)
            assert not all_used
        for left_out, all_used in pair.run(store_operations, by_bucket, heads):
            assert left_out["set"] == 1
            assert left_out.keys() <= {"set", "multi_get"}
            assert not all_used
