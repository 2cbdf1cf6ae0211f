"""Updates that add up the gradients of several batches, by one loop under every engine: as one
process trains on all of them. And what `fully_shard` sends for each of them."""

import copy
import os
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from torch import nn
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as torch_groups
from torch.distributed.tensor import DTensor

import autosync
from autosync.bundle import Bundle, make_bundle
from autosync.search.designs.torch_engines import fsdp2, hsdp, zero2
from autosync.strategy import Strategy
from autosync.torch_engine import Kept
from tests.autosync.runtime.cases import Case, domain, loss_of, make_model, make_optimizer
from tests.autosync.runtime.distributing import bundle_of, each_engine, largest_difference
from tests.autosync.runtime.ranks import Ranks

BATCHES, STEPS = 3, 3
TOLERANCE = 3e-6
KEPT: tuple[Kept, ...] = ("", "gradients", "values")


def trained(
    rank: int, world: int, given: Bundle, ranks_per_node: int = 1
) -> tuple[float, list[tuple[int, int]]]:
    """How far the weights are from those of one process that trains on every rank's batches; and
    how often each step gathered and reduced under `fully_shard`."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank // ranks_per_node}"
    model = make_model("mlp")
    alone = copy.deepcopy(model)
    network: Any
    network, optimizer = autosync.distribute(model, make_optimizer("sgd", model), given)
    theirs = make_optimizer("sgd", alone)
    counts = []
    for step in range(STEPS):
        optimizer.zero_grad()
        theirs.zero_grad()
        with pytest.MonkeyPatch.context() as patched:
            sent = counted(patched)
            for batch in range(step * BATCHES, (step + 1) * BATCHES):
                last = batch == (step + 1) * BATCHES - 1
                with nullcontext() if last else network.no_sync():
                    (loss_of(network, batch, rank) / BATCHES).backward()
                for other in range(world):
                    (loss_of(alone, batch, other) / (BATCHES * world)).backward()
            optimizer.step()
        counts.append((sent["foreach_all_gather"], sent["foreach_reduce"]))
        theirs.step()
    if given.plan.sharding is None:
        network, _ = autosync.detach(network)
    return largest_difference(values_of(network), values_of(alone)), counts


def counted(patched: pytest.MonkeyPatch) -> dict[str, int]:
    """Calls of torch's functions that gather and reduce, from now on."""
    calls = {"foreach_all_gather": 0, "foreach_reduce": 0}
    for name in calls:
        own = getattr(torch_groups, name)

        def count(*given: Any, name: str = name, own: Any = own, **named: Any) -> Any:
            calls[name] += 1
            return own(*given, **named)

        patched.setattr(torch_groups, name, count)
    return calls


def values_of(network: nn.Module) -> dict[str, Any]:
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach()
        for name, value in network.named_parameters()
    }


def keeping(strategy: Strategy, kept: Kept) -> Strategy:
    assert strategy.engine is not None
    return replace(strategy, engine=replace(strategy.engine, kept_between_batches=kept))


@each_engine
def test_plans_and_ddp_train_as_one_process_on_all_batches(pair: Ranks, case: Case) -> None:
    given = bundle_of(case, make_model("mlp"), 2)
    for far, _ in pair.run(trained, given):
        assert far < TOLERANCE


@pytest.mark.parametrize("kept", KEPT)
def test_sharded_training_is_one_processes(pair: Ranks, kept: Kept) -> None:
    """Three units: a batch gathers each for forward and, where it reshards, again for backward."""
    where = domain(make_model("mlp"), 2)
    for make, again in ((fsdp2, 3), (zero2, 0)):
        forward = 3 if kept == "values" else 3 * BATCHES
        expected = (forward + again * BATCHES, 3 if kept else 3 * BATCHES)
        for far, counts in pair.run(trained, make_bundle(keeping(make(where), kept), where)):
            assert far < TOLERANCE
            assert counts == [expected] * STEPS


@pytest.mark.parametrize("kept", KEPT)
def test_hybrid_sharding_is_one_processes(four: Ranks, kept: Kept) -> None:
    where = domain(make_model("mlp"), 4, 2)
    given = make_bundle(keeping(hsdp(where), kept), where)
    for far, _ in four.run(trained, given, 2):
        assert far < TOLERANCE
