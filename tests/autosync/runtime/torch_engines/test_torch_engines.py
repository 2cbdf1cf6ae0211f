"""torch's own engines by the two lines: as torch's DDP trains, or why not."""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import autosync
from autosync.bundle import Bundle, make_bundle
from autosync.domain import Domain
from autosync.errors import InvalidInput, NotSupported
from autosync.exports.ddp import ddp_buckets
from autosync.runtime import fully_shard, torch_engines
from autosync.runtime.fully_shard import check_shardable, named_values, retarget
from autosync.runtime.updates.clipping import clip_before_step
from autosync.runtime.updates.optimizers import has_begun
from autosync.search.designs.bucket_sizes import ddp_of_size, ddp_of_sizes
from autosync.search.designs.torch_engines import ddp_hooked, fsdp2, hsdp, zero2
from autosync.strategy import Encoding, Strategy
from autosync.torch_engine import DdpArguments, FullyShard
from tests.autosync.runtime.beside_ddp import make_mlp
from tests.autosync.runtime.cases import domain, iterate, loss_of, make_model, make_optimizer
from tests.autosync.runtime.distributing import ddp_of, largest_difference, refusal
from tests.autosync.runtime.parts import linear
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.test_distribute import without_room

STEPS = 3


def bundle(make: Callable[[Domain], Strategy], world: int, ranks_per_node: int = 1) -> Bundle:
    where = domain(make_model("mlp"), world, ranks_per_node)
    return make_bundle(make(where), where)


def trained(network: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> dict[str, Tensor]:
    iterate(network, optimizer, rank, range(STEPS))
    plain = network.module if isinstance(network, DistributedDataParallel) else network
    return {
        name: value.full_tensor() if isinstance(value, DTensor) else value.detach()
        for name, value in plain.named_parameters()
    }


def beside_ddp(
    rank: int,
    world: int,
    given: Bundle,
    optimizer: str,
    max_grad_norm: float | None = None,
    ranks_per_node: int = 1,
    build: Callable[[], nn.Module] = make_mlp,
) -> tuple[float, str]:
    """How far the weights are from those under torch's DDP, and what the model became."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank // ranks_per_node}"
    model = build()
    alone, ddp = ddp_of(model)
    with torch.no_grad():  # begins with rank 0's values
        for parameter in model.parameters():
            parameter.add_(rank)
    held = make_optimizer(optimizer, model)
    network, same = autosync.distribute(
        model, held, given, max_grad_norm=max_grad_norm, allow_lossy=True
    )
    assert same is held
    theirs = make_optimizer(optimizer, alone)
    if max_grad_norm:
        clip_before_step(alone, theirs, max_grad_norm)
    found = trained(network, same, rank)
    kind = "fsdp" if isinstance(network, FSDPModule) else type(network).__name__
    return largest_difference(found, trained(ddp, theirs, rank)), kind


@pytest.mark.parametrize("make", [fsdp2, zero2])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adagrad"])
def test_sharded_training_is_ddps(
    pair: Ranks, make: Callable[[Domain], Strategy], optimizer: str
) -> None:
    for far, kind in pair.run(beside_ddp, bundle(make, 2), optimizer):
        assert kind == "fsdp"
        assert far < 3e-6


def test_gradients_are_clipped_by_their_global_norm(pair: Ranks) -> None:
    for far, _ in pair.run(beside_ddp, bundle(fsdp2, 2), "sgd", 0.05):
        assert far < 3e-6


def test_hybrid_sharding_is_ddps(four: Ranks) -> None:
    for far, kind in four.run(beside_ddp, bundle(hsdp, 4, 2), "sgd", None, 2):
        assert kind == "fsdp"
        assert far < 3e-6


def under_buckets(rank: int, world: int, given: Bundle) -> tuple[float, list[int], bool]:
    """How far the weights are from those under torch's DDP as it comes, the bytes of the buckets
    that were formed, and whether gradients lie in them."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = make_model("mlp")
    alone, ddp = ddp_of(model)
    network, optimizer = autosync.distribute(model, make_optimizer("sgd", model), given)
    found = trained(network, optimizer, rank)
    assert isinstance(network, DistributedDataParallel)
    told = network._get_ddp_logging_data()
    formed = [int(each) for each in told["rebuilt_bucket_sizes"].split(",")]
    views = bool(told["gradient_as_bucket_view"])
    wanted = trained(ddp, make_optimizer("sgd", alone), rank)
    return largest_difference(found, wanted), formed, views


@pytest.mark.parametrize("limits", [(100,), (400, 1200), (50, 300, 100)])
def test_buckets_of_other_sizes_are_formed_and_train_alike(
    pair: Ranks, limits: tuple[int, ...]
) -> None:
    if len(limits) > 1 and not torch_engines.takes_bucket_lists():
        pytest.skip("DDP of this torch has one size for all buckets")
    where = domain(make_model("mlp"), 2)
    strategy = ddp_of_sizes(where, limits) if len(limits) > 1 else ddp_of_size(where, *limits)
    expected = [
        sum(where.graph.variables[index].size_bytes for index in bucket)
        for bucket in ddp_buckets(where.graph, limits)
    ]
    assert len(expected) > 1
    for far, formed, views in pair.run(under_buckets, make_bundle(strategy, where)):
        assert far < 3e-6
        assert formed == expected
        assert views


def test_a_list_of_sizes_is_refused_where_torch_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def before(module: nn.Module, bucket_cap_mb: int | None = None) -> None:
        """As torch 2.12 has it."""

    monkeypatch.setattr(torch_engines, "DistributedDataParallel", before)
    arguments = DdpArguments((400, 1200), gradient_as_bucket_view=True)
    with pytest.raises(NotSupported, match="has no bucket_cap_mb_list"):
        torch_engines.wrap_in_ddp(make_model("mlp"), 1200, arguments=arguments)


@pytest.mark.parametrize(
    ("encoding", "least", "most"),
    [
        (Encoding("bf16"), 1e-7, 2e-2),
        (Encoding("fp16"), 1e-7, 2e-3),
        (Encoding("powersgd", 1), 1e-7, 1.0),
    ],
)
def test_hooks_lose_what_they_may(
    pair: Ranks, encoding: Encoding, least: float, most: float
) -> None:
    def hooked(where: Domain) -> Strategy:
        return ddp_hooked(where, encoding)

    for far, kind in pair.run(beside_ddp, bundle(hooked, 2), "sgd"):
        assert kind == "DistributedDataParallel"
        assert least < far < most, "nothing was packed" if far < least else "too much was lost"


def refused(rank: int, world: int, given: Bundle, hooked: Bundle) -> dict[str, str]:
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    found = {}
    model = make_model("mlp")
    optimizer = make_optimizer("sgd", model)
    found["lossy"] = refusal(lambda: autosync.distribute(model, optimizer, hooked))
    loss_of(model, 0, rank).backward()
    optimizer.step()
    found["state"] = refusal(lambda: autosync.distribute(model, optimizer, given))
    fresh = make_optimizer("sgd", model)
    network, _ = autosync.distribute(model, fresh, given)
    found["twice"] = refusal(lambda: autosync.distribute(network, fresh, given))
    found["detach"] = refusal(lambda: autosync.detach(network))
    dist.barrier()
    return found


def test_unsupported_uses_of_torch_engines_are_refused_by_name(pair: Ranks) -> None:
    hooked = bundle(lambda where: ddp_hooked(where, Encoding("bf16")), 2)
    for found in pair.run(refused, bundle(fsdp2, 2), hooked):
        assert "packed by bf16" in found["lossy"]
        assert "holds state of" in found["state"]
        assert "sharded by torch's FSDP" in found["twice"]
        assert "cannot be taken off" in found["detach"]


def test_a_scalar_is_refused_by_name() -> None:
    model = nn.Linear(2, 2)
    model.scale = nn.Parameter(torch.ones(()))
    with pytest.raises(NotSupported, match="'scale' has no dimension"):
        check_shardable(model, [], FullyShard((), 2), cast(Any, None))


def test_a_frozen_table_makes_no_sparse_gradients() -> None:
    """A tuning shards such a model, whose variables are those that train."""
    table = nn.Embedding(4, 2, sparse=True)
    two_ranks = cast(Any, SimpleNamespace(size=lambda: 2))
    with pytest.raises(NotSupported, match="makes sparse gradients"):
        check_shardable(table, [], FullyShard((), 2), two_ranks)
    check_shardable(table.requires_grad_(False), [], FullyShard((), 2), two_ranks)


def test_an_adagrad_begins_its_state_anew_on_the_parts() -> None:
    """Of torch's optimizers it alone has state before its first step."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adagrad(model.parameters(), initial_accumulator_value=0.5)
    assert not has_begun(optimizer)
    whole = optimizer.state
    after = {name: nn.Parameter(p.detach()[:1].clone()) for name, p in model.named_parameters()}
    give_back = retarget(optimizer, named_values(model), after)
    assert set(optimizer.state) == set(after.values())
    for parameter in after.values():
        assert optimizer.state[parameter]["sum"].equal(torch.full_like(parameter, 0.5))
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert has_begun(optimizer)
    give_back()
    assert optimizer.state is whole
    assert not has_begun(optimizer)


def test_an_optimizer_without_room_for_its_state_keeps_what_it_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*given: object) -> None:
        raise MemoryError("full")

    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adagrad(model.parameters())
    state = optimizer.state
    after = {name: nn.Parameter(p.detach()[:1].clone()) for name, p in model.named_parameters()}
    monkeypatch.setattr(fully_shard, "make_first_state", full)
    with pytest.raises(MemoryError):
        retarget(optimizer, named_values(model), after)
    assert optimizer.state is state
    held = optimizer.param_groups[0]["params"]
    assert all(one is own for one, own in zip(held, model.parameters(), strict=True))


def test_an_adagrad_that_has_stepped_is_refused() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adagrad(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with pytest.raises(InvalidInput, match=r"Adagrad.* holds state of 2 whole parameters"):
        check_shardable(model, [optimizer], FullyShard((), 2), cast(Any, None))


def state_of_one(rank: int, world: int, given: Bundle) -> str:
    """Rank 0 alone has loaded a checkpoint, say."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = make_model("mlp")
    optimizer = make_optimizer("sgd", model)
    if rank == 0:
        loss_of(model, 0, rank).backward()
        optimizer.step()
    return refusal(lambda: autosync.distribute(model, optimizer, given))


def test_no_rank_shards_where_one_cannot(pair: Ranks) -> None:
    mine, other = pair.run(state_of_one, bundle(fsdp2, 2))
    assert "holds state of" in mine
    assert other.startswith("rank 0 cannot begin: the optimizer (SGD) holds state of")


def test_no_rank_trains_where_one_has_no_room_for_its_parts(pair: Ranks) -> None:
    other, full = pair.run(without_room, bundle(fsdp2, 2), "apply_fully_shard")
    assert full[0] == "MemoryError: full"
    assert other[0].startswith("InvalidInput: rank 1 cannot begin: MemoryError: full")


def unfrozen(rank: int, world: int, given: Bundle) -> str:
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = make_model("mlp")
    layer = linear(model, 0).requires_grad_(False)
    network, optimizer = autosync.distribute(model, make_optimizer("sgd", model), given)
    trained(network, optimizer, rank)
    layer.requires_grad_(True)
    return refusal(lambda: trained(network, optimizer, rank))


def test_parameters_unfrozen_later_are_refused(pair: Ranks) -> None:
    model = make_model("mlp")
    linear(model, 0).requires_grad_(False)
    where = domain(model, 2)
    for said in pair.run(unfrozen, make_bundle(fsdp2(where), where)):
        assert "0.weight was unfrozen after autosync.distribute" in said


def left_behind(rank: int, world: int, given: Bundle) -> str:
    """An optimizer that distribute was not given holds the parameters that were replaced."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = make_model("mlp")
    other = torch.optim.SGD(list(model.parameters()), lr=0.1)
    network, optimizer = autosync.distribute(model, make_optimizer("sgd", model), given)
    trained(network, optimizer, rank)
    return refusal(other.step)


def test_optimizers_of_replaced_parameters_are_refused(pair: Ranks) -> None:
    for said in pair.run(left_behind, bundle(fsdp2, 2)):
        assert "optimizer SGD, which autosync.distribute was not given, steps on '0.weight'" in said


def test_frozen_parameters_outside_of_the_model_stay_with_the_optimizer() -> None:
    model, outside = nn.Linear(2, 1), nn.Parameter(torch.ones(1), requires_grad=False)
    optimizer = torch.optim.SGD([*model.parameters(), outside], lr=0.1)
    after = {name: nn.Parameter(p.detach().clone()) for name, p in model.named_parameters()}
    retarget(optimizer, named_values(model), after)
    held = optimizer.param_groups[0]["params"]
    assert held[0] is after["weight"]
    assert held[2] is outside
