"""Training under every way a plan can update, beside the same in one process."""

from collections.abc import Callable

import torch
from torch import nn

from autosync.strategy import Schedule
from tests.autosync.runtime.cases import (
    Case,
    attached,
    iterate,
    make_model,
    make_optimizer,
    set_reference_gradients,
    train_reference,
    worst_difference,
)
from tests.autosync.runtime.ranks import Ranks

OVERLAP = Schedule("priority", slice_bytes=100, overlap_forward=True)
CASES = (
    Case(optimizer="adamw"),
    Case(optimizer="adamw", partition="even", schedule=OVERLAP),
    Case(optimizer="adamw", method="zero", partition="even", schedule=OVERLAP),
    Case(optimizer="adamw", method="ps"),
    Case(optimizer="sgd", method="mixed", partition="uneven", groups=4),
    Case(optimizer="sgd", method="mixed", partition="pieces", groups=4, schedule=OVERLAP),
)
NAMES = [f"{c.method}-{c.partition}-{c.schedule.order}" for c in CASES]


def each_case(pool: Ranks, function: Callable[..., float], *cases: Case) -> None:
    """Runs all the cases in one call, so that ranks are woken once."""
    for differences in pool.run(run_cases, function, cases or CASES):
        named = dict(zip(cases if cases else NAMES, differences, strict=True))
        assert all(difference < 3e-6 for difference in differences), named


def run_cases(
    rank: int, world: int, function: Callable[..., float], cases: tuple[Case, ...]
) -> list[float]:
    return [function(rank, world, case) for case in cases]


def manual_reference(
    case: Case, world: int, change: Callable[[torch.optim.Optimizer, nn.Module, int], None]
) -> nn.Module:
    """Single-process training in which `change` does what the script does around step()."""
    model = make_model(case.model)
    optimizer = make_optimizer(case.optimizer, model)
    shares = (1.0 / world,) * world
    for iteration in range(case.iterations):
        set_reference_gradients(model, iteration, shares)
        change(optimizer, model, iteration)
    return model


def train_plain(rank: int, world: int, case: Case) -> float:
    model, optimizer, attachment = attached(case, world)
    iterate(model, optimizer, rank, range(case.iterations))
    attachment.detach()
    return worst_difference(model, train_reference(case, world))
