"""Lossy messages: how much they lose, what they give back later, and that they must be allowed."""

import os
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import autosync
from autosync.runtime.compression import powersgd
from autosync.runtime.compression.powersgd import LowRank
from autosync.runtime.layout.records import VariableRecord
from autosync.strategy import (
    AllReduce,
    Encoding,
    ParameterServer,
    ReduceScatter,
    Schedule,
    Synchronizer,
)
from tests.autosync.runtime.cases import gap, weights
from tests.autosync.runtime.distributing import refusal
from tests.autosync.runtime.parts import gradient_of, linear, total_of
from tests.autosync.runtime.place import beside, here
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.rows import Choose, attached, averaged_all, plan, shipped

ROUNDING = {"fp16": 2.0**-11, "bf16": 2.0**-8}
OVERLAP = Schedule("priority", slice_bytes=200, overlap_forward=True)
NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")
METHODS = ("all_reduce", "tree", "reduce_scatter", "sharded", "server")


def by(method: str, name: str, rank: int = 0) -> Choose:
    encoding = Encoding(name, rank)  # type: ignore[arg-type]

    def choose(shard: int, variable: str, sparse: bool, world: int) -> tuple[int, Synchronizer]:
        chosen: dict[str, Synchronizer] = {
            "all_reduce": AllReduce(0, encoding=encoding),
            "tree": AllReduce(0, "tree", encoding=encoding),
            "reduce_scatter": ReduceScatter(0, encoding=encoding),
            "sharded": ReduceScatter(0, sharded_update=True, encoding=encoding),
            "server": ParameterServer(1, 0, encoding=encoding),
        }
        return 1, chosen[method]

    return choose


def net() -> nn.Module:
    torch.manual_seed(1)
    return here(nn.Sequential(nn.Linear(12, 10), nn.Tanh(), nn.Linear(10, 3)))


def loss(model: nn.Module, iteration: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(10 * iteration + rank)
    inputs = torch.randn(5, 12, generator=generator)
    outputs: Tensor = model(beside(model, inputs))
    return outputs.square().mean()


def excess(rank: int, world: int, method: str, name: str) -> tuple[float, bool, list[float]]:
    """One step of SGD: how often beyond the bound the worst weight is off; whether new values
    are finer than the encoding; all weights."""
    model = net()
    before = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    attachment = attached(model, optimizer, plan(model, world, by(method, name), OVERLAP))
    loss(model, 0, rank).backward()
    optimizer.step()
    attachment.detach()
    exact = averaged_all(before, loss, 0, (1.0 / world,) * world)
    sizes = sums_of_absolutes(before, world)
    worst = 0.0
    for p, old, gradient, size in zip(
        model.parameters(), before.parameters(), exact, sizes, strict=True
    ):
        error = p.detach() - (old.detach() - gradient)
        bound = (world + 1) * ROUNDING[name] * size + 1e-6
        worst = max(worst, gap(error / bound, torch.zeros(())))
    found = weights(model)
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}[name]
    return worst, bool((found.to(half).float() != found).any()), found.tolist()


def sums_of_absolutes(model: nn.Module, world: int) -> list[Tensor]:
    total = [torch.zeros_like(p) for p in model.parameters()]
    for rank in range(world):
        gradients = torch.autograd.grad(loss(model, 0, rank), list(model.parameters()))
        for sum_, gradient in zip(total, gradients, strict=True):
            sum_.add_(gradient.abs() / world)
    return total


@pytest.mark.parametrize("name", list(ROUNDING))
@pytest.mark.parametrize("method", METHODS)
def test_halves_lose_no_more_than_their_rounding(three: Ranks, method: str, name: str) -> None:
    results = three.run(excess, method, name)
    for worst, finer, values in results:
        assert 0 < worst <= 1
        assert finer, "new values travel whole"
        assert values == results[0][2]


def feed_back(rank: int, world: int, iterations: int) -> tuple[float, float, float, float]:
    """A constant random gradient through PowerSGD of rank 2 and SGD.

    Returns the relative error of the sum after the first and the last iteration, how far what
    arrived and what all ranks keep is from the true sum, and the error of the bias.
    """
    model = net()
    nn.init.zeros_(linear(model, 0).bias)  # so that integers stay integers
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    made: list[LowRank] = []

    class Noted(LowRank):
        def __init__(self, variable: VariableRecord, *given: Any) -> None:
            super().__init__(variable, *given)
            made.append(self)

    with patch.object(powersgd, "LowRank", Noted):
        attachment = attached(model, optimizer, plan(model, world, by("all_reduce", "powersgd", 2)))
    directions = [constant_direction(p, r) for r in range(world) for p in before]
    mine = directions[rank * len(before) : (rank + 1) * len(before)]
    wanted = torch.stack([directions[r * len(before)] for r in range(world)]).mean(0)
    errors = []
    for iteration in range(iterations):
        optimizer.zero_grad()
        pairs = zip(model.parameters(), mine, strict=True)
        total_of((p * direction).sum() for p, direction in pairs).backward()
        optimizer.step()
        arrived = (before[0] - linear(model, 0).weight.detach()) / (iteration + 1)
        errors.append(float((arrived - wanted).norm() / wanted.norm()))
    error = next(one for one in made if one.variable.name == "0.weight").error.clone()
    torch.distributed.all_reduce(error)
    lost = wanted * iterations - (before[0] - linear(model, 0).weight.detach()) - error
    biases = [directions[r * len(before) + 1] for r in range(world)]
    bias = torch.stack(biases).mean(0) * iterations
    off = float((before[1] - linear(model, 0).bias.detach() - bias).abs().max())
    attachment.detach()
    return errors[0], errors[-1], float(lost.abs().max()), off


def added_up(rank: int, world: int, method: str, halves: str) -> list[float]:
    """256, 1 and 1 are 258; one after the other in bf16 they would stay 256."""
    model = net()
    for p in model.parameters():
        p.data.zero_()
    if halves == "parameters":
        model = model.bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    shares = (0.5, 0.25, 0.25)
    name = "none" if halves == "parameters" else "bf16"
    made = plan(model, world, by(method, name), OVERLAP, shares)
    attachment = attached(model, optimizer, made)
    weighted = (256.0, 1.0, 1.0)[rank] / shares[rank]
    total_of(p.float().sum() * weighted for p in model.parameters()).backward()
    optimizer.step()
    attachment.detach()
    found: list[float] = weights(model).unique().tolist()
    return found


@pytest.mark.parametrize("halves", ["messages", "parameters"])
@pytest.mark.parametrize("method", ["reduce_scatter", "sharded", "server"])
def test_halves_are_added_in_float32_where_ranks_add_up(
    three: Ranks, method: str, halves: str
) -> None:
    assert three.run(added_up, method, halves) == [[-258.0]] * 3


def constant_direction(parameter: Tensor, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(7 + rank)
    return torch.randint(-4, 5, parameter.shape, generator=generator).to(parameter)


def test_error_feedback_makes_up_for_what_low_rank_loses(three: Ranks) -> None:
    for first, last, lost, bias in three.run(feed_back, 60):
        assert first > 0.3, "rank 2 of 10 loses much at first"
        assert last < 0.1 * first, "what was lost comes later"
        assert lost < 1e-3, "nothing is lost for good"
        assert bias < 1e-4, "1-D tensors travel as they are"


def test_low_rank_gradients_are_exact_and_warm_starts_help() -> None:
    """Alone, with no sum to form: a rank-2 matrix passes at once, others ever better."""
    generator = torch.Generator().manual_seed(2)
    thin = torch.randn(20, 2, generator=generator) @ torch.randn(2, 30, generator=generator)
    buffer = torch.zeros(20, 30)
    one = LowRank(a_variable(), buffer, 2, 0)
    decode(one, thin)
    assert float((buffer - thin).abs().max()) < 1e-4
    steep = torch.randn(20, 30, generator=generator) * 0.5 ** torch.arange(30)
    best = float(torch.linalg.svdvals(steep)[2:].norm())
    losses = []
    for _ in range(6):
        one.error.zero_()
        decode(one, steep)
        losses.append(float((buffer - steep).norm()))
    assert best <= losses[-1] < 1.01 * best
    assert losses[-1] <= losses[0]


def a_variable() -> VariableRecord:
    parameter = nn.Parameter(torch.zeros(1))
    return VariableRecord(0, "weight", parameter, parameter.detach(), 0)


def decode(one: LowRank, gradient: Tensor) -> None:
    one.matrix.copy_(gradient)
    one.decode(one.second(one.first()))


def test_an_overflow_does_not_stay() -> None:
    buffer = torch.zeros(8, 9)
    one = LowRank(a_variable(), buffer, 2, 0)
    decode(one, torch.ones(8, 9))
    error = one.error.clone()
    decode(one, torch.full((8, 9), torch.inf))
    assert not buffer.isfinite().all(), "a GradScaler must see it"
    assert torch.equal(one.error, error)
    decode(one, torch.ones(8, 9))
    assert buffer.isfinite().all()


def test_small_matrices_travel_as_they_are(three: Ranks) -> None:
    for worst in three.run(uncompressed):
        assert worst < 1e-6


def uncompressed(rank: int, world: int) -> float:
    """Rank 6 factors of (10, 12) and (3, 10) matrices are no smaller than they."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    attachment = attached(model, optimizer, plan(model, world, by("all_reduce", "powersgd", 6)))
    loss(model, 0, rank).backward()
    exact = averaged_all(net(), loss, 0, (1.0 / world,) * world)
    pairs = zip(model.parameters(), exact, strict=True)
    worst = max(gap(gradient_of(p), wanted) for p, wanted in pairs)
    optimizer.step()
    attachment.detach()
    return worst


def refuse(rank: int, world: int, name: str, allow: bool) -> str:
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    made = shipped(model, world, by("all_reduce", name, 2 if name == "powersgd" else 0))
    said = refusal(lambda: autosync.distribute(model, optimizer, made, allow_lossy=allow))
    loss(model, 0, rank).backward()
    optimizer.step()
    return said


@pytest.mark.parametrize(
    ("name", "words"), [("fp16", "fp16"), ("bf16", "bf16"), ("powersgd", "PowerSGD of rank 2")]
)
def test_lossy_messages_must_be_allowed(three: Ranks, name: str, words: str) -> None:
    for answer in three.run(refuse, name, False):
        assert f"is packed by {words}, which loses information" in answer
        assert "allow_lossy=True" in answer
    assert three.run(refuse, name, True) == [""] * 3
