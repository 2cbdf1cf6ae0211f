"""`autosync.distribute` on the ranks of a test, and torch's DDP beside it."""

import copy
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import autosync
from autosync.bundle import Bundle, make_bundle
from autosync.errors import AutosyncError
from autosync.extensions.placement.document import evenly
from autosync.extensions.placement.proposals import with_placement
from autosync.runtime.attached_models import ATTACHED
from autosync.runtime.execution import message_queue, monitor
from autosync.runtime.execution.monitor import LOOK_SECONDS
from autosync.runtime.transport import value_agreement
from autosync.search.designs.known_designs import all_reduce_5mb
from autosync.search.designs.torch_engines import fsdp2
from autosync.strategy import Schedule
from tests.autosync.runtime.cases import Case, domain, gap, loss_of, strategy
from tests.autosync.runtime.training import OVERLAP

PLANS = {
    "all-reduce": Case(),
    "reduce-scatter": Case(method="rs", partition="even", schedule=OVERLAP),
    "sharded": Case(method="zero", schedule=OVERLAP),
    "server": Case(method="ps"),
}
"""One of each way to update."""
LATE = {"clocks": Case(method="ps", staleness=1)}
CASES = {**PLANS, **LATE}

DDP = Case(schedule=Schedule("ddp"), groups=1)
ENGINES = {**PLANS, "ddp": DDP}

each_plan = pytest.mark.parametrize("case", PLANS.values(), ids=PLANS)
each_engine = pytest.mark.parametrize("case", ENGINES.values(), ids=ENGINES)

PATIENCE = timedelta(seconds=60)
"""Half of the process group's timeout."""

Optimizers = TypeVar("Optimizers", bound=Optimizer | list[Optimizer])


@contextmanager
def looking_often() -> Iterator[None]:
    """A rank that waits looks ten times as often whether the other one has refused to go on."""
    with ExitStack() as patched:
        for module in (monitor, message_queue, value_agreement):
            patched.enter_context(patch.object(module, "LOOK_SECONDS", LOOK_SECONDS / 10))
        yield


def bundle_of(case: Case, model: nn.Module, world: int) -> Bundle:
    where = domain(model, world, case.ranks_per_node)
    return make_bundle(strategy(case, where.graph, world), where)


def fsdp2_bundle_of(model: nn.Module, world: int) -> Bundle:
    """For torch's own `fully_shard`."""
    where = domain(model, world)
    return make_bundle(fsdp2(where), where)


def placed_bundle_of(model: nn.Module, world: int) -> Bundle:
    """The module of the last variable lives on rank 0 alone."""
    where = domain(model, world)
    graph = where.graph
    names = [variable.name for variable in graph.variables]
    operations = tuple(
        replace(each, name=name) for each, name in zip(graph.operations, names, strict=True)
    )
    where = replace(where, graph=replace(graph, operations=operations))
    placement = (evenly(names[-1].rpartition(".")[0], [0]),)
    return make_bundle(with_placement(all_reduce_5mb(where), where, placement), where)


def distributed(
    rank: int,
    world: int,
    case: Case,
    model: nn.Module,
    optimizer: Optimizers,
    max_grad_norm: float | None = None,
) -> tuple[nn.Module, Optimizers]:
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    plain = model.module if isinstance(model, DistributedDataParallel) else model
    bundle = bundle_of(case, plain, world)
    return autosync.distribute(
        model, optimizer, bundle, max_grad_norm=max_grad_norm, allow_inexact=case.staleness > 0
    )


def refusal(function: Callable[[], object]) -> str:
    """The words in which something is refused; empty where it is not."""
    try:
        function()
    except AutosyncError as error:
        return str(error)
    return ""


def ended_alone(model: nn.Module, is_culprit: bool, iterations: Callable[[], object]) -> str:
    """The words in which iterations end that one rank alone cannot go on with. That rank takes the
    plan off, or, where that cannot tell the other, waits until the other has had the words."""
    plan = ATTACHED.plan_of(model)
    assert plan is not None
    store = dist.distributed_c10d._get_default_store()
    rank, said = dist.get_rank(), "nothing"
    key = f"ended/{store.add(f'ended-on-{rank}', 1)}"
    try:
        iterations()
    except Exception as error:
        known = isinstance(error, AutosyncError)
        said = str(error) if known else f"{type(error).__name__}: {error}"
    if is_culprit and plan.failure is not None:
        store.wait([key], PATIENCE)
    elif not is_culprit:
        store.set(key, "read")
    with suppress(AutosyncError):  # the other one has gone
        plan.detach(keep_state=False)
    assert ATTACHED.plan_of(model) is None
    return said


def warned(function: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [str(warning.message) for warning in caught]


def train(
    rank: int, network: nn.Module, optimizers: Sequence[Optimizer], iterations: Sequence[int]
) -> None:
    for iteration in iterations:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(network, iteration, rank).backward()
        for optimizer in optimizers:
            optimizer.step()


def ddp_of(model: nn.Module) -> tuple[nn.Module, DistributedDataParallel]:
    """A copy of a model, and torch's DDP around it."""
    alone = copy.deepcopy(model)
    return alone, DistributedDataParallel(alone)


def largest_difference(first: object, second: object) -> float:
    """Between the tensors of two structures of one shape; infinite where their shapes differ, or
    where a difference is not a number."""
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        if first.shape != second.shape:
            return float("inf")
        return gap(first.double(), second.double()) if first.numel() else 0.0
    if isinstance(first, dict) and isinstance(second, dict):
        if first.keys() != second.keys():
            return float("inf")
        return max((largest_difference(first[k], second[k]) for k in first), default=0.0)
    if isinstance(first, list) and isinstance(second, list):
        if len(first) != len(second):
            return float("inf")
        pairs = zip(first, second, strict=True)
        return max((largest_difference(a, b) for a, b in pairs), default=0.0)
    return 0.0 if first == second else float("inf")
