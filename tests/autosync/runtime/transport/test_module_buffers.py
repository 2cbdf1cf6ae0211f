"""Module buffers become rank 0's with each backward pass, whatever else a script does."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import autosync
from autosync.runtime.device.streams import ONE_ORDER, Streams
from autosync.runtime.transport.module_buffers import BufferBroadcast, OrderedBufferBroadcast
from tests.autosync.runtime.beside_ddp import PLANS
from tests.autosync.runtime.cases import Case, data, make_optimizer, worst_difference
from tests.autosync.runtime.distributing import distributed
from tests.autosync.runtime.ranks import Ranks


class Net(nn.Module):
    """kind: what reads a buffer. "table": a product, for which autograd saves it; "frozen": batch
    normalization in eval mode; "statistics": in training mode; "checkpointed": that, run again in
    the backward pass."""

    table: Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Linear(6, 8)
        self.register_buffer("table", torch.linspace(0.5, 1.5, 8))
        self.norm = nn.Identity() if kind == "table" else nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 3)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        self.norm.train(self.kind != "frozen")
        hidden = self.first(x)
        if self.kind == "checkpointed":
            out: Tensor = checkpoint(self._rest, hidden, use_reentrant=False)
            return out
        return self._rest(hidden)

    def _rest(self, hidden: Tensor) -> Tensor:
        hidden = hidden * self.table if self.kind == "table" else self.norm(hidden)
        out: Tensor = self.head(torch.tanh(hidden))
        return out


def several_passes(network: nn.Module, optimizer: Any, rank: int) -> None:
    """Two passes before each backward, the first backward of three under `no_sync`."""
    for iteration in range(3):
        optimizer.zero_grad()
        with network.no_sync():  # type: ignore[operator]
            network(data(9 * iteration, rank)[0]).square().mean().backward()
        outputs = [network(data(9 * iteration + k, rank)[0]) for k in (1, 2, 3)]
        torch.stack([out.square().mean() for out in outputs]).sum().backward()
        optimizer.step()


def saved(rank: int, world: int, case: Case, kind: str) -> float:
    """The difference from DDP's training."""
    model, plain = Net(kind), Net(kind)
    optimizer = make_optimizer(case.optimizer, model)
    distributed(rank, world, case, model, optimizer)
    several_passes(model, optimizer, rank)
    autosync.detach(model)
    network = DistributedDataParallel(plain)
    several_passes(network, make_optimizer(case.optimizer, plain), rank)
    return worst_difference(model, plain)


@pytest.mark.parametrize("plan", PLANS)
def test_several_forward_passes_before_backward(pair: Ranks, plan: str) -> None:
    for kind in ("table", "frozen", "statistics"):
        assert max(pair.run(saved, PLANS[plan], kind)) < 3e-6


def test_several_forward_passes_by_the_way_of_a_gpu(as_on_gpus: Ranks) -> None:
    for kind in ("table", "frozen", "statistics"):
        assert max(as_on_gpus.run(saved, PLANS["all-reduce"], kind)) < 3e-6


MOMENTS = ("first", "forward", "loss", "gradients", "stepped")


def alone(
    rank: int, world: int, case: Case, lonely: int, kind: str
) -> tuple[list[float], list[float]]:
    """One rank runs forward passes that the other does not. Buffers behind the last iteration, and
    weights."""
    model = Net(kind)
    optimizer = make_optimizer(case.optimizer, model)
    distributed(rank, world, case, model, optimizer)

    def look(moment: str, iteration: int) -> None:
        if rank == lonely and MOMENTS[iteration % len(MOMENTS)] == moment:
            for place in range(1 + iteration % 3):
                model(data(50 + place, rank)[0])

    for iteration in range(len(MOMENTS) + 1):
        look("first", iteration)
        optimizer.zero_grad()
        look("forward", iteration)
        loss = model(data(iteration, rank)[0]).square().mean()
        look("loss", iteration)
        loss.backward()
        look("gradients", iteration)
        optimizer.step()
        look("stepped", iteration)
    model.state_dict()  # waits for what is under way
    buffers = torch.cat([b.flatten().float() for b in model.buffers()])
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    autosync.detach(model)
    return buffers.tolist(), weights.tolist()


@pytest.mark.parametrize("name", PLANS)
def test_a_rank_runs_forward_passes_alone(pair: Ranks, name: str) -> None:
    for lonely, kind in ((0, "statistics"), (1, "statistics"), (1, "checkpointed")):
        first, second = pair.run(alone, PLANS[name], lonely, kind)
        assert first == second


@pytest.mark.parametrize("name", PLANS)
def test_a_rank_runs_forward_passes_alone_as_on_gpus(as_on_gpus: Ranks, name: str) -> None:
    first, second = as_on_gpus.run(alone, PLANS[name], 1, "statistics")
    assert first == second


def two_models(rank: int, world: int) -> list[list[float]]:
    """A generator and a discriminator, each with statistics of its own: one runs in the backward
    pass of the other."""
    case = replace(PLANS["zero"], optimizer="sgd")
    models = [Net("statistics"), nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))]
    optimizers = [make_optimizer("sgd", model) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        distributed(rank, world, case, model, optimizer)
    generator, judge = models
    for iteration in range(3):
        made = generator(data(iteration, rank)[0])
        optimizers[1].zero_grad()
        (judge(made.detach()).mean() - judge(data(iteration, rank)[1]).mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        judge(made).square().mean().backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
    found = [[b.flatten().tolist() for b in model.state_dict().values()] for model in models]
    for model in models:
        autosync.detach(model)
    return [value for each in found for flat in each for value in flat]


def test_two_models_in_one_backward_pass(pair: Ranks) -> None:
    first, second = pair.run(two_models)
    assert first == second


def set_between(rank: int, world: int) -> list[float]:
    """A schedule of the script's own that it keeps in a buffer, while the last values travel."""
    model = Net("table")
    optimizer = make_optimizer("sgd", model)
    distributed(rank, world, PLANS["all-reduce"], model, optimizer)
    used = []
    for iteration in range(3):
        optimizer.zero_grad()
        model(data(iteration, rank)[0]).square().mean().backward()
        model.table.fill_(iteration)
        optimizer.step()
        used.append(float(model.table[0]))
    autosync.detach(model)
    return used


def test_buffers_set_by_the_script_between_steps_stay(pair: Ranks, as_on_gpus: Ranks) -> None:
    for pool in (pair, as_on_gpus):
        assert pool.run(set_between) == [[0.0, 1.0, 2.0]] * 2


def of_any_form(rank: int, world: int) -> tuple[list[bool], list[bool]]:
    """Whether each buffer is rank 0's, in the layout that it had, and whether it was written."""
    holder, expected = nn.Module(), nn.Module()
    forms: dict[str, Callable[[int], Tensor]] = {
        "scalar": lambda r: torch.tensor(r, dtype=torch.int64),
        "flags": lambda r: torch.tensor([r == 0, True]),
        "laid": lambda r: torch.full((2, 3, 2, 2), 1.5 + r).to(memory_format=torch.channels_last),
        "turned": lambda r: (torch.arange(6.0).view(2, 3) + r).t(),
        "complex_values": lambda r: torch.full((3,), 1 + r * 1j),
        "halves": lambda r: torch.full((3,), 0.25 * r, dtype=torch.bfloat16),
        "empty": lambda r: torch.zeros(0),
        "same": lambda r: torch.tensor([torch.nan, 1.0]),
    }
    for name, form in forms.items():
        holder.register_buffer(name, form(rank))
        expected.register_buffer(name, form(0))
    strides = [buffer.stride() for buffer in holder.buffers()]
    versions = [buffer._version for buffer in holder.buffers()]
    group: Any = dist.group.WORLD
    broadcast = BufferBroadcast(holder, group, rank)
    broadcast.start(lambda work: work.wait())
    broadcast.finish(lambda work: work.wait())
    triples = zip(holder.buffers(), expected.buffers(), strides, strict=True)
    right = [bool(a.equal(b) or a.isnan().any()) and a.stride() == s for a, b, s in triples]
    pairs = zip(holder.buffers(), versions, strict=True)
    return right, [buffer._version != before for buffer, before in pairs]


def test_buffers_of_any_form(pair: Ranks) -> None:
    (right, written), (also_right, written_by_other) = pair.run(of_any_form)
    assert all(right + also_right)
    assert written == [False] * 8, "rank 0 sends"
    assert written_by_other == [True] * 6 + [False] * 2, "what is equal is left alone"


def in_order(rank: int, world: int) -> list[tuple[float, bool]]:
    """Two iterations of statistics, which every rank changes, and a mask, which none does: each
    one's value, and whether its version moved."""
    holder = nn.Module()
    holder.register_buffer("statistics", torch.full((2,), float(rank)))
    holder.register_buffer("mask", torch.full((3,), 5.0 + rank))
    group: Any = dist.group.WORLD
    streams = Streams(ONE_ORDER)
    broadcast = OrderedBufferBroadcast(holder, group, rank, streams)
    found = []
    for _ in range(2):
        holder.statistics.add_(1.0)  # type: ignore[operator]
        versions = [buffer._version for buffer in holder.buffers()]
        broadcast.start(lambda work: work.wait())
        assert not broadcast.has_left()
        broadcast.launch(streams)
        assert broadcast.has_left()
        broadcast.finish(lambda work: work.wait())
        pairs = zip(holder.buffers(), versions, strict=True)
        found += [(float(b[0]), b._version != version) for b, version in pairs]
    return found


def test_buffers_in_the_order_of_messages(pair: Ranks) -> None:
    first, second = pair.run(in_order)
    assert first == [(1.0, False), (5.0, False), (2.0, False), (5.0, False)]
    assert second == [(1.0, True), (5.0, True), (2.0, True), (5.0, False)]
