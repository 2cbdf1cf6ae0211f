"""`autosync.clip_grad_norm_` between backward and step(), as torch's own under DDP."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autosync
from tests.autosync.runtime.cases import (
    Case,
    attached,
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
        differences = (abs(a - b) for a, b in zip(mine, theirs, strict=True))
        found += [worst_difference(model, alone), *differences]
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
    optimizer.step()
    attachment.detach()
    return found


@pytest.mark.parametrize("method", ["zero", "ps"])
def test_what_no_rank_can_clip_is_refused(pair: Ranks, method: str) -> None:
    for norm, some, more in pair.run(otherwise, Case(method=method)):
        assert "the norm is of type 1.0, not 2" in norm
        assert "3 of them were left out" in some
        assert "1 others were given" in more
    for found in pair.run(otherwise, Case()):
        assert found == [""] * 3
