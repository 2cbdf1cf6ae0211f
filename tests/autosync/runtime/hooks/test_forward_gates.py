"""Where forward passes wait for new values."""

import pytest
import torch
from torch import nn

from autosync.runtime.layout.records import VariableRecord
from tests.autosync.runtime.cases import Case, attached, iterate, loss_of
from tests.autosync.runtime.parts import linear
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.training import OVERLAP


def failing(module: nn.Module, args: object) -> None:
    raise ArithmeticError


def waits(rank: int, world: int, first_fails: bool) -> list[list[str]]:
    """The variables that are waited for in a forward pass, in its order."""
    model, optimizer, attachment = attached(Case(schedule=OVERLAP), world)
    if first_fails:
        hook = linear(model, 2).register_forward_pre_hook(failing)
        with pytest.raises(ArithmeticError):
            model(torch.ones(2, 6))
        hook.remove()
    iterate(model, optimizer, rank, range(2))
    found: list[list[str]] = []
    gates = attachment.gates
    wait = gates.wait

    def noted(variables: list[VariableRecord]) -> None:
        found.append([variable.name for variable in variables])
        wait(variables)

    gates.wait = noted
    loss_of(model, 2, rank)
    attachment.detach()
    return found


def test_a_first_forward_that_fails_makes_no_later_one_wait_for_more(pair: Ranks) -> None:
    wanted, _ = pair.run(waits, False)
    assert len(wanted) > 1
    assert pair.run(waits, True) == [wanted, wanted]
