"""`autosync.clip_grad_norm_` between backward and step(), as torch's own under DDP."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import autosync
from autosync.runtime.device.streams import ONE_QUEUE
from autosync.runtime.transport.process_groups import open_groups, small_sum, working_group
from autosync.runtime.updates.clipping import _scale_by, scale_gradients
from tests.autosync.runtime.cases import (
    Case,
    attached,
    gap,
    loss_of,
    make_model,
    make_optimizer,
    worst_difference,
)
from tests.autosync.runtime.distributing import refusal
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.training import each_case

MAX_NORM = 0.05


def train(
    network: nn.Module, optimizer: torch.optim.Optimizer, case: Case, rank: int, scaled: bool
) -> list[float]:
    """Returns the norms before clipping. scaled: by a GradScaler, which unscales before."""
    ours = not isinstance(network, DistributedDataParallel)
    clip = autosync.clip_grad_norm_ if ours else nn.utils.clip_grad_norm_
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=scaled)
    norms = []
    for iteration in range(case.iterations):
        optimizer.zero_grad()
        scaler.scale(loss_of(network, iteration, rank)).backward()
        scaler.unscale_(optimizer)
        norms.append(float(clip(network.parameters(), MAX_NORM)))
        scaler.step(optimizer)
        scaler.update()
    return norms


def beside_torch(rank: int, world: int, case: Case) -> float:
    found = []
    for scaled in (False, True):
        model, optimizer, attachment = attached(case, world)
        alone = make_model(case.model)
        beside = make_optimizer(case.optimizer, alone)
        mine = train(model, optimizer, case, rank, scaled)
        attachment.detach()
        theirs = train(DistributedDataParallel(alone), beside, case, rank, scaled)
        assert max(theirs) > MAX_NORM
        assert len(mine) == len(theirs)
        found += [worst_difference(model, alone), gap(torch.tensor(mine), torch.tensor(theirs))]
    return max(found)


def test_the_norm_over_all_ranks_clips(pair: Ranks) -> None:
    each_case(pair, beside_torch)


def otherwise(rank: int, world: int, case: Case) -> list[str]:
    model, optimizer, attachment = attached(case, world)
    loss_of(model, 0, rank).backward()
    extra = nn.Parameter(torch.ones(2))
    extra.grad = torch.ones(2)
    parameters = list(model.parameters())
    found = [
        refusal(lambda: autosync.clip_grad_norm_(parameters, 1.0, 1.0)),
        refusal(lambda: autosync.clip_grad_norm_(parameters[:2], 1.0)),
        refusal(lambda: autosync.clip_grad_norm_([*parameters, extra], 1.0)),
    ]
    parameters[0].requires_grad_(False)  # which has a gradient all the same
    found.append(refusal(lambda: autosync.clip_grad_norm_(parameters[1:], 1.0)))
    optimizer.step()
    attachment.detach()
    return found


@pytest.mark.parametrize("method", ["zero", "ps"])
def test_unsupported_clipping_is_refused(pair: Ranks, method: str) -> None:
    for norm, some, more, late in pair.run(otherwise, Case(method=method)):
        assert "the norm is of type 1.0, not 2" in norm
        assert "3 of them were left out" in some
        assert "1 others were given" in more
        assert "1 of them were left out" in late
    for found in pair.run(otherwise, Case()):
        assert found == [""] * 4


def without_frozen(rank: int, world: int, case: Case) -> list[float]:
    """The norm over what is trained, and over all parameters, where the first ones were frozen."""
    model, optimizer, attachment = attached(case, world)
    parameters = list(model.parameters())
    for parameter in parameters[:2]:
        parameter.requires_grad_(False)
    loss_of(model, 0, rank).backward()
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    norms = [float(autosync.clip_grad_norm_(each, 1e6)) for each in (trained, parameters)]
    optimizer.step()
    attachment.detach()
    return norms


@pytest.mark.parametrize("method", ["zero", "ps", "all_reduce"])
def test_parameters_frozen_since_may_be_left_out(pair: Ranks, method: str) -> None:
    for some, every in pair.run(without_frozen, Case(method=method)):
        assert some == every > 0


def of_doubles(rank: int, world: int) -> tuple[torch.dtype, float]:
    """The type of the norm, and how far it is from torch's."""
    alone, ours = make_model("mlp").double(), make_model("mlp").double()
    model, optimizer, attachment = attached(
        Case(method="zero"), world, model=ours, optimizer=make_optimizer("sgd", ours)
    )
    network = DistributedDataParallel(alone)
    inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(rank)).double()
    inputs = inputs.to(next(alone.parameters()).device)
    for each in (model, network):
        each(inputs).square().sum().backward()
    mine = autosync.clip_grad_norm_(model.parameters(), MAX_NORM)
    theirs = nn.utils.clip_grad_norm_(network.parameters(), MAX_NORM)
    optimizer.step()
    attachment.detach()
    return mine.dtype, gap(mine, theirs)


def test_the_norm_of_doubles_is_a_double(pair: Ranks) -> None:
    for dtype, difference in pair.run(of_doubles):
        assert dtype == torch.float64
        assert difference < 1e-12


def summed(rank: int, world: int) -> tuple[list[float], list[str]]:
    """By the way of NCCL, on a group of the one queue, and by the control group."""
    control = dist.group.WORLD
    groups = open_groups(working_group(None))
    team = tuple(range(world))
    groups.get(ONE_QUEUE, team)  # of gloo, which takes the same calls
    found = []
    for given in (groups, replace(groups, backend="nccl")):
        total = torch.tensor(1.5 + rank, dtype=torch.float64)
        small_sum(given, ONE_QUEUE, team, control)(total, lambda work: work.wait())
        found.append(float(total))
    made = [purpose for purpose, *_ in groups.made]
    groups.close()
    return found, made


def test_a_small_sum_by_either_way(pair: Ranks) -> None:
    assert pair.run(summed) == [([4.0, 4.0], [ONE_QUEUE])] * 2


def test_a_device_scales_by_itself() -> None:
    """As the host does, without asking for the scale."""

    def gradients() -> list[Tensor]:
        made = (torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.float32)
        return [torch.full((3,), 2.0 + place, dtype=kind) for place, kind in enumerate(made)]

    for scale in (0.25, torch.nan):
        here, there = gradients(), gradients()
        factor = torch.tensor(scale, dtype=torch.float64)
        scale_gradients(here, factor)
        _scale_by(there, factor)
        for one, other in zip(here, there, strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
    scale_gradients(here := gradients(), torch.tensor(1.5, dtype=torch.float64))
    assert all(torch.equal(one, other) for one, other in zip(here, gradients(), strict=True))
