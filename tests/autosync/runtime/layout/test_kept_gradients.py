"""A gradient that the script clears and keeps stays as it was, though the next backward pass writes
over the buffer that it was a view of."""

from collections.abc import Sequence

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autosync.runtime.layout.packing import is_kept
from tests.autosync.runtime.cases import (
    Case,
    attached,
    iterate,
    loss_of,
    make_model,
    make_optimizer,
    worst_difference,
)
from tests.autosync.runtime.parts import gradient_of
from tests.autosync.runtime.ranks import Ranks

CASES = (Case(), Case(groups=9), Case(method="rs"), Case(method="byteps"), Case(partition="even"))


def by_two_gradients(
    network: nn.Module,
    parameters: Sequence[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    rank: int,
) -> None:
    """Of two losses; those of the first are not cloned."""
    for iteration in range(3):
        optimizer.zero_grad()
        loss_of(network, iteration, rank).backward()
        first = [gradient_of(p) for p in parameters]
        optimizer.zero_grad()
        loss_of(network, iteration + 50, rank).backward()
        for p, other in zip(parameters, first, strict=True):
            gradient_of(p).sub_(other, alpha=0.5)
        optimizer.step()


def differences(rank: int, world: int) -> list[float]:
    alone = make_model("mlp")
    ddp = DistributedDataParallel(alone)
    by_two_gradients(ddp, list(alone.parameters()), make_optimizer("sgd", alone), rank)
    found = []
    for case in CASES:
        model, optimizer, attachment = attached(case, world)
        by_two_gradients(model, list(model.parameters()), optimizer, rank)
        attachment.detach()
        found.append(worst_difference(model, alone))
    return found


def test_kept_gradients_are_not_written_over(pair: Ranks) -> None:
    for found in pair.run(differences):
        assert max(found) < 3e-6, dict(zip(CASES, found, strict=True))


def holders(rank: int, world: int, case: Case) -> tuple[set[bool], set[bool]]:
    """Whether gradients count as kept: where nobody keeps them, and where the script does."""
    model, optimizer, attachment = attached(case, world)
    iterate(model, optimizer, rank, range(2))
    optimizer.zero_grad()
    nobody = {is_kept(v) for v in attachment.engine.variables if v.view is not None}
    loss_of(model, 2, rank).backward()
    held = [gradient_of(p) for p in model.parameters()]
    optimizer.zero_grad()
    script = {is_kept(v) for v in attachment.engine.variables if v.view is not None}
    assert len(held) == len(attachment.engine.variables)
    attachment.detach()
    return nobody, script


@pytest.mark.parametrize("case", [Case(), Case(method="rs")])
def test_only_what_the_script_holds_is_copied(pair: Ranks, case: Case) -> None:
    assert pair.run(holders, case) == [({False}, {True})] * 2
