"""A DeviceMesh of 2 x 2 ranks: replicas beside tensor parallelism; and what FSDP has sharded."""

import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import autosync
from tests.autosync.runtime.cases import Case, data, make_optimizer, worst_difference
from tests.autosync.runtime.distributing import bundle_of, refusal
from tests.autosync.runtime.ranks import Ranks, ranks
from tests.autosync.runtime.training import OVERLAP

PLANS = {
    "all-reduce": Case(optimizer="adamw"),
    "sharded": Case(optimizer="adamw", method="zero", partition="even", schedule=OVERLAP),
    "server": Case(optimizer="adamw", method="ps"),
}
HIDDEN = 8


@pytest.fixture(scope="module")
def square() -> Iterator[Ranks]:
    with ranks(4) as made:
        made.run(meet)
        yield made


MESH: list[DeviceMesh] = []


def meet(rank: int, world: int) -> None:
    """Ranks 0 and 2 are replicas, and 1 and 3; ranks 0 and 1 hold the parts of one model."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    MESH.append(init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")))


class ToParts(torch.autograd.Function):
    """Forward is the identity, backward sums up the parts' gradients."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class SumOfParts(torch.autograd.Function):
    """The other way round."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Any) -> Tensor:
        total = part.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class Parts(nn.Module):
    """One rank's part of a two-layer network: columns of the first layer, rows of the second."""

    def __init__(self) -> None:
        super().__init__()
        group, parts = MESH[0]["tp"].get_group(), MESH[0]["tp"].size()
        self.group, part = group, MESH[0]["tp"].get_local_rank()
        torch.manual_seed(3)
        whole = [nn.Linear(6, HIDDEN), nn.Linear(HIDDEN, 3)]
        self.norm = nn.LayerNorm(6)  # equal on all ranks
        self.first = nn.Linear(6, HIDDEN // parts)
        self.second = nn.Linear(HIDDEN // parts, 3, bias=False)
        with torch.no_grad():
            self.first.weight.copy_(whole[0].weight.chunk(parts)[part])
            self.first.bias.copy_(whole[0].bias.chunk(parts)[part])
            self.second.weight.copy_(whole[1].weight.chunk(parts, 1)[part])

    def forward(self, x: Tensor) -> Tensor:
        to_parts: Any = ToParts.apply
        sum_of_parts: Any = SumOfParts.apply
        hidden = torch.tanh(self.first(to_parts(self.norm(x), self.group)))
        total: Tensor = sum_of_parts(self.second(hidden), self.group)
        return total


def follow(network: nn.Module, optimizer: torch.optim.Optimizer, iterations: int = 4) -> None:
    replica = MESH[0]["dp"].get_local_rank()
    for iteration in range(iterations):
        x, wanted = data(iteration, replica)
        optimizer.zero_grad()
        nn.functional.mse_loss(network(x), wanted).backward()
        optimizer.step()


def of_parts(rank: int, world: int, case: Case) -> float:
    group = MESH[0]["dp"].get_group()
    model, plain = Parts(), Parts()
    optimizer = make_optimizer(case.optimizer, model)
    made, optimizer = autosync.distribute(model, optimizer, bundle_of(case, model, 2), group)
    assert made is model
    follow(model, optimizer)
    autosync.detach(model)
    ddp = DistributedDataParallel(plain, process_group=group)
    follow(ddp, make_optimizer(case.optimizer, plain))
    return worst_difference(model, plain)


@pytest.mark.parametrize("plan", PLANS)
def test_plain_parts_are_synchronized_over_the_replicas(square: Ranks, plan: str) -> None:
    limit = 0.0 if plan == "all-reduce" else 3e-6
    assert max(square.run(of_parts, PLANS[plan])) <= limit


def clipped_by_hand(rank: int, world: int) -> tuple[str, float]:
    """As docs/frameworks.md has it. Returns the refusal of `max_grad_norm`, and the norm."""
    mesh, case = MESH[0], Case(optimizer="adamw")
    model = Parts()
    optimizer = make_optimizer("adamw", model)
    group, bundle = mesh["dp"].get_group(), bundle_of(case, model, 2)
    said = refusal(lambda: autosync.distribute(model, optimizer, bundle, group, max_grad_norm=1.0))
    _, optimizer = autosync.distribute(model, optimizer, bundle, group)
    x, wanted = data(0, mesh["dp"].get_local_rank())
    nn.functional.mse_loss(model(x), wanted).backward()
    sharded = [model.first.weight, model.first.bias, model.second.weight]
    norms = torch.stack([p.grad.norm() for p in sharded if p.grad is not None])
    squares = norms.square().sum()
    dist.all_reduce(squares, group=mesh["tp"].get_group())
    rest = torch.stack([p.grad.norm() for p in model.norm.parameters() if p.grad is not None])
    total = (squares + rest.square().sum()).sqrt()
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, total)
    optimizer.step()
    autosync.detach(model)
    return said, float(total)


def test_the_norm_of_a_part_is_not_taken_for_the_models(square: Ranks) -> None:
    found = square.run(clipped_by_hand)
    assert all("process group of 2 of 4 ranks" in said for said, _ in found)
    assert len({norm for _, norm in found}) == 1


def fallen_back(rank: int, world: int) -> list[str]:
    """A bundle for all ranks, and one for whole parameters: neither is for the parts."""
    group = MESH[0]["dp"].get_group()
    said = []
    second = nn.Linear(HIDDEN, 3, bias=False)
    whole = nn.ModuleDict(
        {"norm": nn.LayerNorm(6), "first": nn.Linear(6, HIDDEN), "second": second}
    )
    for bundle in (bundle_of(Case(), Parts(), 4), bundle_of(Case(), whole, 2)):
        model = Parts()
        optimizer = make_optimizer("sgd", model)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            network, _ = autosync.distribute(model, optimizer, bundle, group)
        assert isinstance(network, DistributedDataParallel)
        said.append(str(caught[0].message))
        autosync.detach(network)
    return said


def test_a_bundle_of_another_world_or_of_whole_parameters_falls_back(square: Ranks) -> None:
    for world, shape in square.run(fallen_back):
        assert "it is for 4 ranks, this job has 2" in world
        assert "variable 'first.weight' has shape (4, 6), not (8, 6)" in shape


def by_torch(rank: int, world: int) -> dict[str, str]:
    """What torch shards is refused in words; the line that they give is tried."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh, said = MESH[0], {}

    def layers() -> nn.Module:
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(6, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 3))

    def tried(model: nn.Module) -> str:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        bundle = bundle_of(Case(), layers(), 2)
        group = mesh["dp"].get_group()
        return refusal(lambda: autosync.distribute(model, optimizer, bundle, group))

    model = parallelize_module(
        layers(), mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    said["dtensor"] = tried(model)
    said["tuned"] = refusal(
        lambda: autosync.tune(print, model, torch.optim.SGD(model.parameters()), minutes=0.1)
    )
    network = DistributedDataParallel(model, device_mesh=mesh["dp"])
    follow(network, torch.optim.SGD(network.parameters(), lr=0.1), iterations=2)
    sharded = layers()
    fully_shard(sharded, mesh=mesh["dp"])
    said["fsdp"] = tried(sharded)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates it
        wrapped = FullyShardedDataParallel(
            layers(), mesh["dp"].get_group(), device_id=torch.device("cpu"), use_orig_params=True
        )
    said["fsdp1"] = tried(wrapped)
    return said


def test_sharded_parameters_are_refused_on_every_rank(square: Ranks) -> None:
    for said in square.run(by_torch):
        assert "parameter '0.weight' is a DTensor" in said["dtensor"]
        assert 'DistributedDataParallel(model, device_mesh=mesh["dp"])' in said["dtensor"]
        assert said["tuned"] == said["dtensor"]
        for kind in ("fsdp", "fsdp1"):
            assert "sharded by torch's FSDP" in said[kind]
            assert (
                "bundle of the strategy `fsdp2`, `zero2` or `hsdp` puts fully_shard" in said[kind]
            )


def on_one_rank(rank: int, world: int) -> str:
    """Rank 0's model has a parameter that torch has sharded, its replica's on rank 2 has not."""
    mesh = MESH[0]
    model = Parts()
    if rank == 0:
        weight = DTensor.from_local(model.first.weight.detach(), mesh["tp"], run_check=False)
        model.first.weight = nn.Parameter(weight)
    optimizer = make_optimizer("sgd", model)
    group = mesh["dp"].get_group()
    said = refusal(
        lambda: autosync.distribute(model, optimizer, bundle_of(Case(), Parts(), 2), group)
    )
    if not said:
        autosync.detach(model)
    return said


def test_a_parameter_sharded_on_one_rank_is_refused_by_every_replica(square: Ranks) -> None:
    first, second, third, fourth = square.run(on_one_rank)
    assert "parameter 'first.weight' is a DTensor" in first
    assert "rank 0 cannot begin: parameter 'first.weight' is a DTensor" in third
    assert (second, fourth) == ("", "")
