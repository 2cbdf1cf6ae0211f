"""Random choices of the space `fsdp2`, applied by the two lines: as torch's DDP trains."""

import os
import threading
import warnings
from collections import OrderedDict
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

import autosync
from autosync.bundle import Bundle, make_bundle
from autosync.domain import Domain
from autosync.errors import NotSupported
from autosync.exports import settings_for
from autosync.population import decode
from autosync.runtime.bundle_fit import matched_names
from autosync.runtime.fully_shard import copy_without_values, unit_modules
from autosync.search.sampler.sampling import sample
from autosync.search.space import SPACES
from autosync.simulator.sharded_strategy import sharded_by
from autosync.strategy import EXACT, Encoding, Strategy
from autosync.torch_engine import FullyShard
from autosync.trials.session import ReusedGroups, RunningJob, attach
from autosync.verification import verify
from tests.autosync.exports.test_executed_settings import under_fsdp2
from tests.autosync.runtime.cases import domain, make_optimizer
from tests.autosync.runtime.distributing import refusal
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.torch_engines import test_torch_engines
from tests.autosync.runtime.torch_engines.test_torch_engines import trained

TOLERANCE = 3e-6
"""Of weights after three steps: sums in another order."""


class Blocks(nn.Module):
    """Blocks between what could be an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(6, 8)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(5)))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.front(x)))
        return out


def make_blocks() -> Blocks:
    torch.manual_seed(7)
    return Blocks()


def blocks_domain(world: int, ranks_per_node: int = 1) -> Domain:
    """On NCCL by its word, since prefetching is drawn for accelerators alone; operations are called
    as a recording calls them."""
    plain = domain(make_blocks(), world, ranks_per_node)
    graph = plain.graph
    named = tuple(
        replace(operation, name=f"{graph.variables[index].name.rpartition('.')[0]}.linear")
        for index, operation in enumerate(graph.operations)
    )
    return replace(
        plain,
        graph=replace(graph, operations=named),
        cluster=replace(plain.cluster, backend="nccl"),
    )


def drawn(where: Domain, count: int, seed: int) -> list[Strategy]:
    population = sample(where, SPACES["fsdp2"], 0, count, seed)
    found = [decode(population, index, where) for index in range(count)]
    for strategy in found:
        verify(strategy, where)
    return found


def bundles(where: Domain, strategies: list[Strategy]) -> list[Bundle]:
    return [make_bundle(strategy, where) for strategy in strategies]


def beside_ddp(
    rank: int, world: int, given: list[Bundle], ranks_per_node: int, optimizer: str
) -> list[float]:
    """How far the weights are from those under torch's DDP, by bundle."""
    options = (optimizer, None, ranks_per_node, make_blocks)
    found = [test_torch_engines.beside_ddp(rank, world, each, *options) for each in given]
    assert {kind for _, kind in found} == {"fsdp"}
    return [far for far, _ in found]


def test_random_choices_train_as_ddp_on_two_ranks(pair: Ranks) -> None:
    where = blocks_domain(2)
    strategies = drawn(where, 8, 1)
    engines = [strategy.engine for strategy in strategies if strategy.engine is not None]
    assert any(isinstance(unit, tuple) for each in engines for unit in each.units)
    assert any(isinstance(each.reshard_after_forward, tuple) for each in engines)
    assert any("head" in each.units for each in engines)
    assert {each.forward_prefetch for each in engines} >= {1, 2, 3}
    assert {each.backward_prefetch for each in engines} >= {1, 2, 3}
    for apart in pair.run(beside_ddp, bundles(where, strategies), 1, "adamw"):
        assert max(apart) < TOLERANCE


def test_random_choices_train_as_ddp_on_four_ranks(four: Ranks) -> None:
    where = blocks_domain(4, 2)
    strategies = drawn(where, 5, 0)
    assert {each.engine.shard_ranks for each in strategies if each.engine} == {2, 4}
    assert any(each.engine.smaller_groups for each in strategies if each.engine)
    for apart in four.run(beside_ddp, bundles(where, strategies), 2, "sgd"):
        assert max(apart) < TOLERANCE


def resharded_within_nodes(rank: int, world: int, given: Bundle) -> tuple[Any, int, float]:
    """Meshes over which blocks are cut after a forward pass, process groups that the bundle has
    opened, and how far the weights are from those under torch's DDP."""
    groups = len(dist.distributed_c10d._world.pg_map)
    (apart,) = beside_ddp(rank, world, [given], 2, "adamw")
    opened = len(dist.distributed_c10d._world.pg_map) - groups
    network, held = autosync.distribute(
        (model := make_blocks()), make_optimizer("sgd", model), given
    )
    loss = network(torch.ones(4, 6)).sum()
    held_in_blocks: list[Any] = [each for block in model.blocks for each in block.parameters()]
    parts = {tuple(e.device_mesh.shape) for e in held_in_blocks if hasattr(e, "placements")}
    loss.backward()
    held.step()
    return parts, opened, apart


def test_units_reshard_within_nodes_and_train_as_ddp(four: Ranks) -> None:
    where = blocks_domain(4, 2)
    units = tuple(f"blocks.{i}" for i in range(5))
    few, many = (
        make_bundle(sharded_by(where, FullyShard(units, 4, each)), where)
        for each in ((2, True, False, True, True), (2, 2, False, 2, 2))
    )
    opened = []
    for given in (few, many):
        for parts, groups, apart in four.run(resharded_within_nodes, given):
            assert (2, 2) in parts
            assert apart < TOLERANCE
            opened.append(groups)
    assert len(set(opened)) == 1  # however many units reshard so


def tried_in_a_job(rank: int, world: int, given: list[Bundle]) -> tuple[bool, bool, int]:
    """Whether trials ran on sharded copies of the same values, whether the job's own values stayed,
    and how many of the trials' process groups are left."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank // 2}"
    group, groups = dist.new_group(), ReusedGroups()
    before = len(dist.distributed_c10d._world.pg_map)
    model = make_blocks()
    optimizer = make_optimizer("adamw", model)
    values = [value.detach().clone() for value in model.parameters()]
    sharded = []
    for bundle in given:
        running = RunningJob(group, timedelta(seconds=60))
        attached = attach(model, optimizer, bundle, 1.0, groups, running=running)
        parts: list[Any] = list(attached.model.parameters())
        whole = [each.full_tensor().detach() for each in parts]
        sharded.append(
            isinstance(attached.model, FSDPModule) and all(map(torch.equal, whole, values))
        )
        attached.model(rows_of(rank)).square().sum().backward()
        optimizer.step()
        attached.detach()
    groups.close()
    left = len(dist.distributed_c10d._world.pg_map) - before
    dist.destroy_process_group(group)
    return all(sharded), all(map(torch.equal, values, model.parameters())), left


def test_a_running_job_tries_any_mesh_and_closes_it(four: Ranks) -> None:
    where = blocks_domain(4, 2)
    units = ("blocks.0", ("blocks.1", "blocks.2"))
    engines = [FullyShard(units, 2), FullyShard(units, 4, 2), FullyShard(units, 4)]
    given = bundles(where, [sharded_by(where, engine) for engine in engines])
    for _ in range(2):  # the second job's meshes are not the first one's
        assert four.run(tried_in_a_job, given) == [(True, True, 0)] * 4


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    model = make_blocks()
    model.lock = threading.Lock()  # type: ignore[assignment]  # as a model may hold
    with pytest.raises(NotSupported, match=r"the model \(Blocks\) cannot be copied"):
        copy_without_values(model)


def test_resharding_within_nodes_is_exported(four: Ranks) -> None:
    where = blocks_domain(4, 2)
    where = replace(where, cluster=replace(where.cluster, backend="gloo"))
    engine = FullyShard(("blocks.0", ("blocks.1", "blocks.2"), "blocks.3"), 4, (2, True, 2))
    found = settings_for("fsdp2", sharded_by(where, engine), where)
    assert found.settings["reshard_after_forward"] == [2, True, 2]
    for _, worst in four.run(under_fsdp2, found.snippet, make_blocks, rows_of):
        assert worst < 1e-5


def rows_of(rank: int) -> Tensor:
    return torch.ones(4, 6) + rank


def test_gradients_are_reduced_in_bf16_where_that_is_asked_for(pair: Ranks) -> None:
    where = blocks_domain(2)
    engine = FullyShard((("blocks.0", "blocks.1"), "blocks.2"), 2, (True, False))
    lossy = bundles(where, [sharded_by(where, engine, Encoding("bf16"))])
    for (far,) in pair.run(beside_ddp, lossy, 1, "sgd"):
        assert 1e-7 < far < 2e-2


def computed_in_halves(rank: int, world: int, given: Bundle) -> tuple[Any, float]:
    """Types of the output, of what a linear layer computes with, of gathered bytes and of a rank's
    parts; and how far the weights are from those under torch's DDP."""
    (apart,) = beside_ddp(rank, world, [given], 1, "sgd")
    network, held = autosync.distribute(
        (model := make_blocks()), make_optimizer("sgd", model), given, allow_lossy=True
    )
    seen = []
    model.head.register_forward_pre_hook(lambda module, args: seen.append(args[0].dtype))
    loss = network(torch.ones(4, 6))
    loss.sum().backward()
    held.step()
    types = {parameter.dtype for parameter in model.parameters()}
    gradients = {
        parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None
    }
    return (loss.dtype, seen, types, gradients), apart


@pytest.mark.parametrize("reduced", [EXACT, Encoding("bf16")], ids=["float32", "bf16"])
def test_values_are_gathered_and_computed_with_in_bf16(pair: Ranks, reduced: Encoding) -> None:
    where = blocks_domain(2)
    engine = FullyShard(("blocks.0", ("blocks.1", "blocks.2")), 2, param_dtype="bf16")
    lossy = make_bundle(sharded_by(where, engine, reduced), where)
    whole, half = torch.float32, torch.bfloat16
    for types, far in pair.run(computed_in_halves, lossy):
        assert types == (whole, [half], {whole}, {whole})
        assert 1e-5 < far < 5e-2
    for said in pair.run(unasked, lossy):
        assert "loses information" in said


def unasked(rank: int, world: int, given: Bundle) -> str:
    model = make_blocks()
    return refusal(lambda: autosync.distribute(model, make_optimizer("sgd", model), given))


def gathers_of(rank: int, world: int, given: Bundle) -> tuple[int, int, int]:
    """Gathers of an iteration, those of them before anything computes, and blocks that hold whole
    values after its forward pass."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    network, held = autosync.distribute(
        (model := make_blocks()), make_optimizer("sgd", model), given
    )
    trained(network, held, rank)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        loss = network(torch.ones(4, 6)).sum()
        whole = sum(
            any(not hasattr(each, "placements") for each in block.parameters())
            for block in model.blocks
        )
        loss.backward()
    events = profile.events()
    gathers = [e.time_range.start for e in events if e.name.split(" ")[0] == "FSDP::all_gather"]
    computes = min(e.time_range.start for e in events if e.name == "aten::linear")
    return len(gathers), sum(start < computes for start in gathers), whole


@pytest.mark.parametrize("prefetch", [1, 2])
def test_what_is_chosen_is_what_torch_does(pair: Ranks, prefetch: int) -> None:
    where = blocks_domain(2)
    units = (("blocks.0", "blocks.1"), "blocks.2", ("blocks.3", "blocks.4"))
    engine = FullyShard(units, 2, (True, True, False), forward_prefetch=prefetch)
    (bundle,) = bundles(where, [sharded_by(where, engine)])
    for gathers, before, whole in pair.run(gathers_of, bundle):
        assert gathers == 6  # the root and three units, and two of them again
        assert before == (1 if prefetch == 1 else 1 + prefetch)  # beside the root's
        assert whole == 2


def warned(rank: int, world: int, given: Bundle) -> str:
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = make_blocks()
    options = {"find_unused_parameters": True}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        autosync.distribute(model, make_optimizer("sgd", model), given, ddp_options=options)
    return " ".join(str(each.message) for each in caught)


def test_an_option_without_effect_is_named(pair: Ranks) -> None:
    where = blocks_domain(2)
    (bundle,) = bundles(where, [sharded_by(where, FullyShard(("blocks.0",), 2))])
    said = pair.run(warned, bundle)
    assert ["find_unused_parameters has no effect" in each for each in said] == [True, False]


def test_words_of_wrappers_within_a_unit_are_not_of_its_name() -> None:
    """As where the script compiles a layer of a block, or checkpoints it."""
    plain, wrapped = make_blocks(), make_blocks()
    block = wrapped.blocks[0]
    assert isinstance(block, nn.Sequential)
    block[0] = nn.Sequential(OrderedDict(_orig_mod=block[0]))
    engine = FullyShard(("blocks.0", "blocks.1"), 2)
    for planned, model in ((plain, wrapped), (wrapped, plain)):
        theirs, own = (dict(each.named_parameters()) for each in (planned, model))
        units = unit_modules(model, engine, matched_names(theirs, own))
        assert units == [[model.blocks[0]], [model.blocks[1]]]


class TiedBlocks(Blocks):
    def __init__(self) -> None:
        super().__init__()
        self.blocks[0][0].weight = self.blocks[1][0].weight  # type: ignore[index]


def tied(rank: int, world: int, given: Bundle) -> str:
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = TiedBlocks()
    return refusal(lambda: autosync.distribute(model, make_optimizer("sgd", model), given))


def test_a_parameter_of_two_units_is_refused(pair: Ranks) -> None:
    where = domain(TiedBlocks(), 2)
    engine = FullyShard(("blocks.0", "blocks.1"), 2)
    for said in pair.run(tied, make_bundle(sharded_by(where, engine), where)):
        assert "are one, but the plan gathers them in different units" in said
