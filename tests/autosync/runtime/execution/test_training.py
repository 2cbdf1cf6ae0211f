"""What users of torch's DDP expect, under every way a plan can update."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from autosync.strategy import Schedule
from tests.autosync.runtime.cases import (
    Case,
    attached,
    gap,
    iterate,
    loss_of,
    make_model,
    make_optimizer,
    reference_gradients,
    train_reference,
    worst_difference,
)
from tests.autosync.runtime.distributing import refusal
from tests.autosync.runtime.parts import total_of, without_sync
from tests.autosync.runtime.place import HERE
from tests.autosync.runtime.ranks import Ranks, ranks
from tests.autosync.runtime.training import CASES, OVERLAP, each_case, manual_reference, train_plain


@pytest.mark.parametrize("model", ["cnn", "tied", "branching"])
def test_models(pair: Ranks, model: str) -> None:
    each_case(pair, train_plain, *(replace(case, model=model) for case in CASES))


def half_precision(rank: int, world: int, case: Case) -> float:
    """bf16 sums round, so weights agree to bf16's 8 bits only; here scaled to the common limit."""
    return train_plain(rank, world, replace(case, model="half")) * 1e-4


def test_bf16_parameters(pair: Ranks) -> None:
    each_case(pair, half_precision)


def test_hierarchy_on_two_nodes_of_two_ranks(four: Ranks) -> None:
    cases = [
        Case(method=method, ranks_per_node=2, schedule=schedule, partition="uneven", groups=3)
        for method in ("hierarchical", "hierarchical_ps")
        for schedule in (Schedule(), OVERLAP)
    ]
    each_case(four, train_plain, *cases)


def test_uneven_shares(pair: Ranks) -> None:
    each_case(pair, train_plain, *(replace(case, shares=(0.75, 0.25)) for case in CASES))


def scheduled(rank: int, world: int, case: Case) -> float:
    """The scheduler runs right behind step(), while updates are still under way."""

    def change(optimizer: torch.optim.Optimizer, model: nn.Module, iteration: int) -> None:
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] *= 0.5

    model, optimizer, attachment = attached(case, world)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for iteration in range(case.iterations):
        loss_of(model, iteration, rank).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    attachment.detach()
    optimizer.step()
    scheduler.step()  # warns, and so fails, when the optimizer was not given back whole
    return worst_difference(model, manual_reference(case, world, change))


def test_scheduler(pair: Ranks) -> None:
    each_case(pair, scheduled)


def zeroed_at_once(rank: int, world: int, case: Case) -> float:
    case = replace(case, iterations=4)
    model, optimizer, attachment = attached(case, world)
    for iteration in range(case.iterations):
        loss_of(model, iteration, rank).backward()
        optimizer.step()
        (optimizer if iteration % 2 else model).zero_grad(set_to_none=iteration < 2)
    attachment.detach()
    return worst_difference(model, train_reference(case, world))


def test_zero_grad_behind_step(pair: Ranks) -> None:
    each_case(pair, zeroed_at_once)


def clipped(rank: int, world: int, case: Case) -> float:
    def change(optimizer: torch.optim.Optimizer, model: nn.Module, iteration: int) -> None:
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.05)))
        optimizer.step()

    norms: list[float] = []
    model, optimizer, attachment = attached(case, world, max_grad_norm=0.05)
    found = []
    for iteration in range(case.iterations):
        optimizer.zero_grad()
        loss_of(model, iteration, rank).backward()
        optimizer.step()
        found.append(attachment.engine.gradients.grad_norm)
    attachment.detach()
    difference = worst_difference(model, manual_reference(case, world, change))
    assert len(found) == len(norms)
    return max(difference, gap(torch.tensor(found), torch.tensor(norms)))


def test_clipping_by_the_true_norm(pair: Ranks) -> None:
    each_case(pair, clipped)


def test_clipping_where_a_rank_owns_nothing() -> None:
    with ranks(3) as pool:
        each_case(pool, clipped, Case(optimizer="adamw", method="ps"))


def scaled(rank: int, world: int, case: Case) -> float:
    """Rank 1 alone overflows in iteration 1: every rank must skip it and halve the scale."""

    def change(optimizer: torch.optim.Optimizer, model: nn.Module, iteration: int) -> None:
        if iteration != 1:
            optimizer.step()

    model, optimizer, attachment = attached(case, world)
    scaler = torch.amp.GradScaler(HERE.device.type, init_scale=1024.0)
    for iteration in range(case.iterations):
        optimizer.zero_grad()
        loss = scaler.scale(loss_of(model, iteration, rank))
        if iteration == 1 and rank == 1:
            loss = loss * torch.inf
        loss.backward()
        if iteration % 2:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    attachment.detach()
    assert scaler.get_scale() == 512.0
    return worst_difference(model, manual_reference(case, world, change))


def test_scaler(pair: Ranks) -> None:
    each_case(pair, scaled)


def accumulated(rank: int, world: int, case: Case) -> float:
    """Two micro-batches an iteration; the reference sees their sum."""
    model, optimizer, attachment = attached(case, world)
    for iteration in (0, 2):
        optimizer.zero_grad()
        with without_sync(model):
            loss_of(model, iteration, rank).backward()
        loss_of(model, iteration + 1, rank).backward()
        optimizer.step()
    attachment.detach()
    alone = make_model(case.model)
    single = make_optimizer(case.optimizer, alone)
    shares = (1.0 / world,) * world
    for iteration in (0, 2):
        halves = [reference_gradients(alone, iteration + i, shares) for i in range(2)]
        for p, first, second in zip(alone.parameters(), *halves, strict=True):
            p.grad = first + second
        single.step()
    return worst_difference(model, alone)


def test_gradient_accumulation(pair: Ranks) -> None:
    each_case(pair, accumulated)


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Sequential, reentrant: bool):
        super().__init__()
        self.inner = inner
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner[:2](x)
        out: Tensor = checkpoint(self.inner[2:], x, use_reentrant=self.reentrant)
        return out


def checkpointed(rank: int, world: int, case: Case) -> float:
    worst = 0.0
    for reentrant, training in ((False, True), (True, True), (True, False)):
        inner = make_model(case.model)
        assert isinstance(inner, nn.Sequential)
        model = Checkpointed(inner, reentrant)
        model.train(training)  # a fine-tune may run in evaluation mode
        optimizer = make_optimizer(case.optimizer, model)
        _, _, attachment = attached(case, world, model=model, optimizer=optimizer)
        iterate(model, optimizer, rank, range(case.iterations))
        attachment.detach()
        worst = max(worst, worst_difference(inner, train_reference(case, world)))
    return worst


def test_activation_checkpointing(pair: Ranks) -> None:
    each_case(pair, checkpointed)


def buffers_in_step(rank: int, world: int, case: Case) -> float:
    """After training, every rank has rank 0's running statistics."""
    model, optimizer, attachment = attached(case, world)
    reference = nn.parallel.DistributedDataParallel(make_model(case.model))
    optimizer_of = make_optimizer(case.optimizer, reference)
    for iteration in range(case.iterations):
        for network, update in ((model, optimizer), (reference, optimizer_of)):
            update.zero_grad()
            loss_of(network, iteration, rank).backward()
            update.step()
    loss_of(reference, 0, rank)  # DDP sends its buffers only before a forward
    loss_of(model, 0, rank)
    pairs = list(
        zip(model.state_dict().values(), reference.module.state_dict().values(), strict=True)
    )
    attachment.detach()
    return max(gap(a, b) for a, b in (pairs if rank == 0 else pairs[:2]))


def test_module_buffers(pair: Ranks) -> None:
    each_case(pair, buffers_in_step, *(replace(case, model="cnn") for case in CASES[:3]))


def integer(rank: int, world: int, case: Case) -> float:
    """Integer gradients and a power-of-two world add up exactly in any order."""
    model, optimizer, attachment = attached(case, world)
    for p in model.parameters():
        p.data.copy_((p * 8).round())
    total_of((p * (rank + 1) * counted(p)).sum() for p in model.parameters()).backward()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    attachment.engine.flush()
    expected = [counted(p) * (world + 1) / 2 for p in before]
    alone = [nn.Parameter(p) for p in before]
    single = torch.optim.SGD(alone, lr=0.5)
    for p, gradient in zip(alone, expected, strict=True):
        p.grad = gradient
    single.step()
    attachment.detach()
    exact = all(torch.equal(a, b) for a, b in zip(model.parameters(), alone, strict=True))
    return 0.0 if exact else 1.0


def counted(like: Tensor) -> Tensor:
    return torch.arange(1, like.numel() + 1, device=like.device).view(like.shape)


def test_integer_gradients_are_bit_equal(pair: Ranks) -> None:
    cases = [
        Case(optimizer="plain", method=method, partition=partition, groups=3)
        for method in ("all_reduce", "tree", "ps", "rs", "zero", "mixed")
        for partition in ("whole", "even", "uneven", "pieces")
    ]
    each_case(pair, integer, *cases)


def user_errors(rank: int, world: int) -> list[str]:
    found = []
    for case in (CASES[1], CASES[2]):
        model, optimizer, attachment = attached(case, world)
        loss_of(model, 0, rank).backward()
        found.append(refusal(lambda: loss_of(model, 1, rank).backward()))  # noqa: B023
        optimizer.zero_grad()
        with without_sync(model):
            loss_of(model, 0, rank).backward()
        found.append(refusal(optimizer.step))
        attachment.detach()
    return found


def test_misuse_is_named(pair: Ranks) -> None:
    for found in pair.run(user_errors):
        assert ["no_sync" in message for message in found] == [True] * 4


def test_warnings_are_errors_in_ranks(pair: Ranks) -> None:
    with pytest.raises(AssertionError, match="a warning"):
        pair.run(_warn)


def _warn(rank: int, world: int) -> None:
    warnings.warn("a warning", stacklevel=1)
