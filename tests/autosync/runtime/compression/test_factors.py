"""Sufficient factors equal single-process training, and no rank computes its own gradient."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.hooks import RemovableHandle

from autosync.strategy import AllReduce, Factors, Schedule, Synchronizer
from tests.autosync.runtime.cases import gap, weights, worst_difference
from tests.autosync.runtime.distributing import refusal
from tests.autosync.runtime.parts import gradient_of, without_sync
from tests.autosync.runtime.place import beside, here
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.rows import (
    attached,
    averaged,
    averaged_all,
    plan,
    shares_of,
    train,
    train_alone,
)

OVERLAP = Schedule("priority", overlap_forward=True)


class Net(nn.Module):
    """One layer runs twice, one works on three dimensions, one is followed by work in place."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(6, 8)
        self.again = nn.Linear(8, 8, bias=False)
        self.last = nn.Linear(8, 3)
        self.checkpointed = checkpointed

    def body(self, x: Tensor) -> Tensor:
        x = nn.functional.relu(self.first(x), inplace=True)
        return torch.tanh(self.again(torch.tanh(self.again(x))))

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(2, -1, 6)
        x = checkpoint(self.body, x, use_reentrant=False) if self.checkpointed else self.body(x)
        out: Tensor = self.last(x)
        return out.flatten(0, 1)


def rows_of(rank: int, iteration: int) -> int:
    """Batches differ between ranks and iterations."""
    return 2 * (1 + (rank + iteration) % 3)


def loss(model: nn.Module, iteration: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * iteration + rank)
    inputs = torch.randn(rows_of(rank, iteration), 6, generator=generator)
    outputs: Tensor = model(beside(model, inputs))
    return outputs.square().mean()


def choose(shard: int, name: str, sparse: bool, world: int) -> tuple[int, Synchronizer]:
    """Matrices as factors, two of them in one message."""
    if not name.endswith("weight"):
        return 1, AllReduce(9)
    return 1, Factors(1 if name.startswith("last") else 0)


def optimizer_of(model: nn.Module, name: str) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def run(
    rank: int,
    world: int,
    kind: str,
    schedule: Schedule,
    even: bool,
    norm: float | None,
    checkpointed: bool,
) -> tuple[float, list[float]]:
    model, alone = here(Net(checkpointed)), here(Net())
    shares = shares_of(world, even)
    optimizer = optimizer_of(model, kind)
    made = plan(model, world, choose, schedule, shares)
    attachment = attached(model, optimizer, made, norm)
    train(model, optimizer, loss, 4, rank)
    attachment.detach()
    assert "forward" not in model.first.__dict__
    train_alone(alone, optimizer_of(alone, kind), loss, 4, shares, norm)
    return worst_difference(model, alone), weights(model).tolist()


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("schedule", [Schedule(), OVERLAP], ids=["fifo", "overlap"])
@pytest.mark.parametrize("even", [True, False], ids=["even", "uneven"])
def test_equals_single_process(three: Ranks, kind: str, schedule: Schedule, even: bool) -> None:
    results = three.run(run, kind, schedule, even, None, False)
    assert max(difference for difference, _ in results) < 2e-6
    assert all(values == results[0][1] for _, values in results)


def test_clipping_and_checkpointing(pair: Ranks) -> None:
    for schedule in (Schedule(), OVERLAP):
        for norm, checkpointed in ((0.05, False), (None, True)):
            results = pair.run(run, "adamw", schedule, True, norm, checkpointed)
            assert max(difference for difference, _ in results) < 2e-6


def gradients(rank: int, world: int, dtype: torch.dtype) -> list[float]:
    """What `parameter.grad` holds after backward, against the average."""
    model = Net().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attachment = attached(model, optimizer, plan(model, world, choose))
    integers(model, rank, dtype).backward()
    expected = averaged_all(Net().to(dtype), lambda m, _, r: integers(m, r, dtype), 0, (0.5, 0.5))
    worst = []
    for parameter, wanted in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert parameter.grad.dtype == dtype
        worst.append(gap(parameter.grad, wanted))
    optimizer.step()
    attachment.detach()
    return worst


def integers(model: nn.Module, rank: int, dtype: torch.dtype) -> Tensor:
    """A loss whose gradients are integers, small enough to be exact in every type."""
    assert isinstance(model, Net)
    total = torch.zeros((), dtype=dtype)
    for layer in (model.first, model.again, model.last):
        count = 2 * (rank + 1) * layer.in_features
        inputs = torch.arange(count, dtype=dtype).remainder(5).view(-1, layer.in_features) - 2
        total = total + layer(inputs).sum()
    return total


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_integers_are_equal_to_the_bit_in_every_type(pair: Ranks, dtype: torch.dtype) -> None:
    for worst in pair.run(gradients, dtype):
        assert max(worst) == 0.0


def accumulate(rank: int, world: int, spoil: str) -> float:
    """Two passes under no_sync and a third that is synchronized, against three summed ones."""
    model, alone = Net(), Net()
    optimizer, other = optimizer_of(model, "sgd"), optimizer_of(alone, "sgd")
    attachment = attached(model, optimizer, plan(model, world, choose))
    shares = shares_of(world, True)
    for iteration in range(2):
        optimizer.zero_grad()
        for part in range(3):
            with without_sync(model) if part < 2 else nullcontext():
                loss(model, 3 * iteration + part, rank).backward()
            if part == 0 and spoil == "zero":
                model.zero_grad()
            if part == 0 and spoil == "double":
                for parameter in model.parameters():
                    gradient_of(parameter).mul_(2)
        optimizer.step()
        total = [torch.zeros_like(p) for p in alone.parameters()]
        for part in range(3):
            weight = {"zero": 0.0, "double": 2.0}.get(spoil, 1.0) if part == 0 else 1.0
            summands = averaged_all(alone, loss, 3 * iteration + part, shares)
            for sum_, summand in zip(total, summands, strict=True):
                sum_.add_(summand, alpha=weight)
        for parameter, sum_ in zip(alone.parameters(), total, strict=True):
            parameter.grad = sum_
        other.step()
    attachment.detach()
    return worst_difference(model, alone)


@pytest.mark.parametrize("spoil", ["", "zero", "double"])
def test_no_sync_accumulates(pair: Ranks, spoil: str) -> None:
    """Also where the script clears or changes the gradients in between."""
    assert max(pair.run(accumulate, spoil)) < 2e-6


def drawn(part: int, rank: int) -> Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * part + rank))


def reused(rank: int, world: int) -> float:
    """Three passes, two of them under no_sync, whose batches come in the same memory."""
    model, alone = Net(), Net()
    optimizer, other = optimizer_of(model, "sgd"), optimizer_of(alone, "sgd")
    attachment = attached(model, optimizer, plan(model, world, choose))
    batch = torch.empty(4, 6)
    for part in range(3):
        batch.copy_(drawn(part, rank))
        with without_sync(model) if part < 2 else nullcontext():
            model(batch).square().mean().backward()
        for peer in range(world):
            (alone(drawn(part, peer)).square().mean() / world).backward()
    optimizer.step()
    other.step()
    attachment.detach()
    return worst_difference(model, alone)


def test_a_batch_whose_memory_is_written_anew_counts_as_it_was(pair: Ranks) -> None:
    assert max(pair.run(reused)) < 2e-6


def mixed_precision(rank: int, world: int) -> tuple[float, set[str]]:
    """bf16 autocast: the factors travel in bf16, the sum is formed in float32."""
    model, alone = Net(), Net()
    optimizer, other = optimizer_of(model, "sgd"), optimizer_of(alone, "sgd")
    attachment = attached(model, optimizer, plan(model, world, choose))
    types: set[str] = set()

    def autocast(m: nn.Module, iteration: int, r: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss(m, iteration, r)

    for iteration in range(2):
        optimizer.zero_grad()
        autocast(model, iteration, rank).backward()
        packers = [v.packer for v in attachment.engine.variables if v.packer]
        types |= {str(packer.packed[1].dtype) for packer in packers}  # type: ignore[attr-defined]
        optimizer.step()
    attachment.detach()
    train_alone(alone, other, autocast, 2, shares_of(world, True))
    return worst_difference(model, alone), types


def test_mixed_precision_keeps_the_factors_type(pair: Ranks) -> None:
    for worst, types in pair.run(mixed_precision):
        assert types == {"torch.bfloat16"}
        assert worst < 2e-3


def passes_that_do_not_count(rank: int, world: int) -> float:
    """torch.autograd.grad for the inputs, an evaluation and a copied model leave no rows."""
    model, alone = Net(), Net()
    optimizer = optimizer_of(model, "sgd")
    attachment = attached(model, optimizer, plan(model, world, choose))
    for iteration in range(2):
        optimizer.zero_grad()
        inputs = torch.ones(2, 6, requires_grad=True)
        torch.autograd.grad(model(inputs).sum(), inputs)
        with torch.no_grad():
            model.eval()(inputs)
        model.train()
        twin = copy.deepcopy(model)
        twin(inputs).sum().backward()
        assert twin.first.weight.grad is not None
        loss(model, iteration, rank).backward()
        optimizer.step()
    attachment.detach()
    train_alone(alone, optimizer_of(alone, "sgd"), loss, 2, shares_of(world, True))
    return worst_difference(model, alone)


def test_other_passes_leave_nothing_behind(pair: Ranks) -> None:
    assert max(pair.run(passes_that_do_not_count)) < 2e-6


class Branches(Net):
    """One rank leaves out `again`, then `last`; in the third iteration no rank uses `again`."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if len(x) % 4 == 0:
            x = self.again(x)
        return x if len(x) == 6 else self.last(x)


def unused(rank: int, world: int) -> float:
    model, alone = Branches(), Branches()
    optimizer, other = optimizer_of(model, "sgd"), optimizer_of(alone, "sgd")
    attachment = attached(model, optimizer, plan(model, world, choose))
    train(model, optimizer, loss, 3, rank)
    attachment.detach()
    train_alone(alone, other, loss, 3, shares_of(world, True))
    return worst_difference(model, alone)


def test_layers_that_only_some_or_no_ranks_use(pair: Ranks) -> None:
    assert max(pair.run(unused)) < 2e-6


class Products(TorchDispatchMode):
    """Counts the matrix products of its own thread."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm)
        return func(*args, **(kwargs or {}))


def products(rank: int, world: int) -> tuple[int, int]:
    """Of a backward pass without the plan, and with it (the completion thread's not counted)."""
    counts = []
    for planned in (False, True):
        model = Net()
        optimizer = optimizer_of(model, "sgd")
        attachment = attached(model, optimizer, plan(model, world, choose)) if planned else None
        value = loss(model, 0, rank)
        with Products() as seen:  # type: ignore[no-untyped-call]  # torch's class has no annotations
            value.backward()
        counts.append(seen.count)
        if attachment is not None:
            optimizer.step()
            attachment.detach()
    return counts[0], counts[1]


def test_no_rank_computes_its_own_gradient(pair: Ranks) -> None:
    for alone, planned in pair.run(products):
        assert alone == 7  # four layer passes: to each weight, and to all inputs but the first
        assert planned == 3


def refused(rank: int, world: int) -> list[str]:
    shared, adapted = Net(), nn.Sequential(nn.Linear(6, 6))
    shared.last = nn.Linear(8, 8, bias=False)
    shared.last.weight = shared.again.weight
    adapted[0].__class__ = type("Adapted", (nn.Linear,), {})
    models: tuple[nn.Module, ...] = (shared, adapted)
    plans = [(model, optimizer_of(model, "sgd"), plan(model, world, choose)) for model in models]
    return [refusal(partial(attached, *each)) for each in plans]


def test_shared_weights_and_other_layers_are_refused_by_name(pair: Ranks) -> None:
    for shared, adapted in pair.run(refused):
        assert "'again.weight' is shared by 2 modules" in shared
        assert "Use all_reduce" in shared
        assert "'0.weight' belongs to a Adapted" in adapted


def frozen_later(rank: int, world: int) -> float:
    """A weight of the plan that the script freezes keeps its value."""
    model, alone = Net(), Net()
    optimizer, other = optimizer_of(model, "sgd"), optimizer_of(alone, "sgd")
    attachment = attached(model, optimizer, plan(model, world, choose))
    for iteration in range(3):
        for net in (model, alone):
            net.again.requires_grad_(iteration != 1)
        train(model, optimizer, partial(later, iteration), 1, rank)
        means = averaged(alone, loss, iteration, shares_of(world, True))
        for parameter, mean in zip(alone.parameters(), means, strict=True):
            parameter.grad = mean
        other.step()
    attachment.detach()
    return worst_difference(model, alone)


def later(begin: int, model: nn.Module, iteration: int, rank: int) -> Tensor:
    return loss(model, begin + iteration, rank)


def test_a_weight_may_be_frozen_for_a_while(pair: Ranks) -> None:
    assert max(pair.run(frozen_later)) < 2e-6


HOOKS: dict[str, Callable[[Tensor], RemovableHandle]] = {
    "register_hook": lambda weight: weight.register_hook(lambda gradient: gradient),
    "post_accumulate": lambda weight: weight.register_post_accumulate_grad_hook(lambda p: None),
}


def hooked(rank: int, world: int, name: str) -> tuple[str, str]:
    """Before the plan is attached, and behind it on one rank."""
    model = Net()
    handle = HOOKS[name](model.last.weight)
    optimizer = optimizer_of(model, "sgd")
    made = plan(model, world, choose)
    before = refusal(partial(attached, model, optimizer, made))
    handle.remove()
    attachment = attached(model, optimizer, made)
    if rank == 1:
        HOOKS[name](model.last.weight)
    behind = refusal(partial(train, model, optimizer, loss, 1, rank))
    attachment.detach()
    return before, behind


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_of_a_gradient_that_no_rank_computes_are_refused(pair: Ranks, name: str) -> None:
    for answers in pair.run(hooked, name):
        for said in answers:
            assert "'last.weight' has a hook of its gradient" in said
