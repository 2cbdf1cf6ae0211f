"""Touched rows equal torch's own sparse training in a single process."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autosync.errors import NotSupported
from autosync.strategy import (
    AllGather,
    AllReduce,
    Encoding,
    ParameterServer,
    Schedule,
    Synchronizer,
)
from tests.autosync.runtime.cases import weights, worst_difference
from tests.autosync.runtime.distributing import refusal
from tests.autosync.runtime.parts import without_sync
from tests.autosync.runtime.place import beside, here
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.rows import (
    Choose,
    attached,
    averaged,
    averaged_all,
    plan,
    shares_of,
    train,
    train_alone,
)

ROWS = 23
OVERLAP = Schedule("priority", overlap_forward=True)


class Lookup(nn.Module):
    """Two tables, one of them summed into bags, and a dense layer where the optimizer takes it."""

    def __init__(self, dense: bool = True) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.words = nn.Embedding(ROWS, 4, sparse=True)
        self.bags = nn.EmbeddingBag(ROWS, 4, sparse=True, mode="sum")
        self.head = nn.Linear(4, 3) if dense else None

    def forward(self, indices: Tensor) -> Tensor:
        x = self.words(indices).sum(1) * self.bags(indices)
        out: Tensor = self.head(x) if self.head is not None else x
        return out


def loss(model: nn.Module, iteration: int, rank: int) -> Tensor:
    """The number of touched rows differs, some rows repeat, some iterations touch few."""
    generator = torch.Generator().manual_seed(100 * iteration + rank)
    highest = 2 if iteration == 2 else ROWS
    shape = (1 + (rank + iteration) % 3, 3)
    indices = torch.randint(0, highest, shape, generator=generator)
    outputs: Tensor = model(beside(model, indices))
    return outputs.tanh().square().mean()


def gathered(shard: int, name: str, sparse: bool, world: int) -> tuple[int, Synchronizer]:
    return (1, AllGather(0)) if sparse else (1, AllReduce(1))


def owned(shard: int, name: str, sparse: bool, world: int) -> tuple[int, Synchronizer]:
    """Both tables whole in one message of one owner."""
    return (1, ParameterServer(1, 0)) if sparse else (1, AllReduce(1))


def spread(shard: int, name: str, sparse: bool, world: int) -> tuple[int, Synchronizer]:
    """Tables in uneven parts over all owners; those of one owner share messages."""
    if not sparse:
        return 1, ParameterServer(0, 50)
    return 5, ParameterServer(shard % world, shard % (2 * world) + 2)


def mixed(shard: int, name: str, sparse: bool, world: int) -> tuple[int, Synchronizer]:
    """Every other part of a table gathered, the rest owned."""
    if not sparse:
        return 1, AllReduce(1)
    return 4, AllGather(shard % 2 + 2) if shard % 2 else ParameterServer(shard % world, shard + 10)


WAYS: dict[str, Choose] = {"gathered": gathered, "owned": owned, "spread": spread}
OPTIMIZERS = ("sgd", "momentum", "nesterov", "adagrad", "sparse_adam")


def optimizer_of(model: nn.Module, name: str) -> torch.optim.Optimizer:
    # torch builds a sparse tensor without saying whether it checks it
    torch.sparse.check_sparse_tensor_invariants.disable()
    parameters = list(model.parameters())
    groups: list[dict[str, Any]] = [
        {"params": parameters[:1]},
        {"params": parameters[1:], "lr": 0.05},
    ]
    match name:
        case "sgd":
            return torch.optim.SGD(groups, lr=0.1)
        case "momentum":
            return torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        case "nesterov":
            return torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
        case "adagrad":
            return torch.optim.Adagrad(groups, lr=0.1)
        case "sparse_adam":
            return torch.optim.SparseAdam(groups, lr=0.1)
    return torch.optim.AdamW(groups, lr=0.1)


def run(
    rank: int, world: int, way: str, kind: str, schedule: Schedule, even: bool, norm: float | None
) -> tuple[float, list[float]]:
    model, alone = (here(Lookup(kind != "sparse_adam")) for _ in range(2))
    shares = shares_of(world, even)
    optimizer, other = optimizer_of(model, kind), optimizer_of(alone, kind)
    attachment = attached(model, optimizer, plan(model, world, WAYS[way], schedule, shares), norm)
    train(model, optimizer, loss, 3, rank)
    attachment.detach()
    train_alone(alone, other, loss, 3, shares, norm)
    assert_same_state(optimizer, other, model, alone)
    return worst_difference(model, alone), weights(model).tolist()


def assert_same_state(
    optimizer: torch.optim.Optimizer,
    other: torch.optim.Optimizer,
    model: nn.Module,
    alone: nn.Module,
) -> None:
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        state, wanted = optimizer.state[mine], other.state[theirs]
        assert state.keys() == wanted.keys()
        for key, value in wanted.items():
            if not isinstance(value, Tensor):
                assert state[key] == value
                continue
            assert state[key].layout == value.layout
            torch.testing.assert_close(
                state[key].to_dense(), value.to_dense(), atol=2e-6, rtol=1e-5
            )


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("way", list(WAYS))
def test_equals_single_process(three: Ranks, way: str, kind: str) -> None:
    for schedule, even in ((Schedule(), False), (OVERLAP, True)):
        results = three.run(run, way, kind, schedule, even, None)
        assert max(difference for difference, _ in results) < 2e-6
        assert all(values == results[0][1] for _, values in results)


def test_clipping_uses_the_true_norm(pair: Ranks) -> None:
    for way in WAYS:
        for schedule in (Schedule(), OVERLAP):
            results = pair.run(run, way, "adagrad", schedule, True, 0.05)
            assert max(difference for difference, _ in results) < 2e-6


def integers(rank: int, world: int) -> float:
    """Integer gradients, weighted by halves: bit-equal sums."""
    model = Lookup()
    optimizer = optimizer_of(model, "sgd")
    attachment = attached(model, optimizer, plan(model, world, gathered))

    def count(m: nn.Module, iteration: int, r: int) -> Tensor:
        assert isinstance(m, Lookup)
        rows: Tensor = m.words(torch.tensor([[r, r, 7], [7, 22, r]]))
        return rows.sum()

    loss_of_all = count(model, 0, rank) + 0.0 * (model.bags(torch.tensor([[0]])).sum())
    loss_of_all.backward()

    def everything(m: nn.Module, iteration: int, r: int) -> Tensor:
        return count(m, iteration, r) + 0 * all_sum(m)

    wanted = averaged_all(Lookup(), everything, 0, (0.5, 0.5))[0]
    found = model.words.weight.grad
    assert found is not None
    assert found.is_sparse
    optimizer.step()
    attachment.detach()
    return float((found.to_dense() - wanted.to_dense()).abs().max())


def all_sum(model: nn.Module) -> Tensor:
    outputs: Tensor = model(torch.tensor([[0]]))
    return outputs.sum()


def test_integer_rows_are_equal_to_the_bit(pair: Ranks) -> None:
    assert pair.run(integers) == [0.0, 0.0]


def accumulate(rank: int, world: int, way: str) -> float:
    model, alone = Lookup(), Lookup()
    optimizer, other = optimizer_of(model, "adagrad"), optimizer_of(alone, "adagrad")
    attachment = attached(model, optimizer, plan(model, world, WAYS[way]))
    for iteration in range(2):
        optimizer.zero_grad()
        with without_sync(model):
            loss(model, 2 * iteration, rank).backward()
        loss(model, 2 * iteration + 1, rank).backward()
        optimizer.step()
        first = averaged_all(alone, loss, 2 * iteration, shares_of(world, True))
        second = averaged_all(alone, loss, 2 * iteration + 1, shares_of(world, True))
        for parameter, a, b in zip(alone.parameters(), first, second, strict=True):
            parameter.grad = (a + b).coalesce() if a.is_sparse else a + b
        other.step()
    attachment.detach()
    return worst_difference(model, alone)


def test_no_sync_accumulates(pair: Ranks) -> None:
    for way in WAYS:
        assert max(pair.run(accumulate, way)) < 2e-6


def scaled(rank: int, world: int, way: str) -> tuple[float, float, float]:
    """A scaler that skips its second iteration, where rank 0 overflows."""
    model, alone = Lookup(), Lookup()
    optimizer, other = optimizer_of(model, "momentum"), optimizer_of(alone, "momentum")
    attachment = attached(model, optimizer, plan(model, world, WAYS[way]))
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for iteration in range(3):
        optimizer.zero_grad()
        value = loss(model, iteration, rank)
        scaler.scale(value * (torch.inf if iteration == 1 and rank == 0 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        if iteration == 1:
            continue
        for parameter, gradient in zip(
            alone.parameters(), averaged(alone, loss, iteration, (0.5, 0.5)), strict=True
        ):
            parameter.grad = gradient
        other.step()
    attachment.detach()
    return (
        worst_difference(model, alone),
        scaler.get_scale(),
        float(weights(model).isfinite().all()),
    )


def test_a_grad_scaler_sees_the_summed_rows(pair: Ranks) -> None:
    for way in WAYS:
        for worst, scale, finite in pair.run(scaled, way):
            assert worst < 2e-6
            assert scale == 128.0
            assert finite


def checkpointed(rank: int, world: int, kind: str) -> float:
    """Train, save, go on in a fresh model under another plan; state travels both ways."""
    model, alone = (here(Lookup(kind != "sparse_adam")) for _ in range(2))
    optimizer, other = optimizer_of(model, kind), optimizer_of(alone, kind)
    attachment = attached(model, optimizer, plan(model, world, spread, OVERLAP))
    train(model, optimizer, loss, 2, rank)
    values, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    attachment.detach()
    again = Lookup(kind != "sparse_adam")
    later = optimizer_of(again, kind)
    attachment = attached(again, later, plan(again, world, owned))
    again.load_state_dict(values)
    later.load_state_dict(state)
    train(again, later, loss, 3, rank)
    attachment.detach()
    train_alone(alone, other, loss, 2, shares_of(world, True))
    train_alone(alone, other, loss, 3, shares_of(world, True))
    return worst_difference(again, alone)


@pytest.mark.parametrize("kind", ["momentum", "adagrad", "sparse_adam"])
def test_state_moves_to_another_plan(pair: Ranks, kind: str) -> None:
    assert max(pair.run(checkpointed, kind)) < 2e-6


def after_dense_training(rank: int, world: int) -> tuple[float, list[float]]:
    """The momentum of dense gradients, of a checkpoint, goes on moving rows that nobody touches."""
    model, alone = Lookup(), Lookup()
    optimizer, other = optimizer_of(model, "momentum"), optimizer_of(alone, "momentum")
    for each, of_it in ((model, optimizer), (alone, other)):
        for parameter in each.parameters():
            of_it.state[parameter]["momentum_buffer"] = torch.ones_like(parameter)
    attachment = attached(model, optimizer, plan(model, world, spread))
    train(model, optimizer, loss, 2, rank)
    attachment.detach()
    train_alone(alone, other, loss, 2, shares_of(world, True))
    return worst_difference(model, alone), weights(model).tolist()


def test_a_dense_momentum_moves_every_row_on_every_rank(pair: Ranks) -> None:
    (first, values), (second, others) = pair.run(after_dense_training)
    assert max(first, second) < 2e-6
    assert values == others


def in_fp16(shard: int, name: str, sparse: bool, world: int) -> tuple[int, Synchronizer]:
    return 1, ParameterServer(1, 0, encoding=Encoding("fp16"))


def of_sixteen_bits(rank: int, world: int) -> list[float]:
    """Gradients for which fp16 has only zero."""
    torch.sparse.check_sparse_tensor_invariants.disable()
    model = nn.Sequential(nn.Embedding(ROWS, 4, sparse=True)).bfloat16()
    for table in model.parameters():
        nn.init.zeros_(table)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**40)
    attachment = attached(model, optimizer, plan(model, world, in_fp16))
    (model(torch.tensor([5])).float().sum() * 2.0**-40).backward()
    optimizer.step()
    attachment.detach()
    return [float(value) for table in model.parameters() for value in table[5].detach()]


def test_rows_of_sixteen_bits_travel_as_they_are(pair: Ranks) -> None:
    assert pair.run(of_sixteen_bits) == [[-1.0] * 4] * 2


def untouched(rank: int, world: int, way: str) -> list[int]:
    """Rows that changed on this rank beyond those that any rank touched."""
    model = Lookup()
    before = model.words.weight.detach().clone()
    optimizer = optimizer_of(model, "sgd")
    attachment = attached(model, optimizer, plan(model, world, WAYS[way]))
    for marked in (False, True):
        if marked:
            with torch.no_grad():  # that only a message of the whole table would wipe out
                model.words.weight[20] = rank
        optimizer.zero_grad()
        model.words(torch.tensor([[rank, 5]])).sum().backward()
        optimizer.step()
    attachment.detach()
    changed = (model.words.weight.detach() != before).any(1).nonzero()[:, 0].tolist()
    assert model.words.weight[20, 0] == rank
    return changed


def test_only_touched_rows_travel_back(pair: Ranks) -> None:
    for way in WAYS:
        for changed in pair.run(untouched, way):
            assert changed == [0, 1, 5, 20]


def refused(rank: int, world: int, case: str) -> str:
    model = Lookup()
    optimizer = optimizer_of(model, "adamw" if case == "adamw" else "sgd")
    made = plan(model, world, mixed if case == "mixed" else gathered)
    if case == "decay":
        optimizer.param_groups[0]["weight_decay"] = 0.1
    if case == "became dense":
        model.words.sparse = False
    if case == "became sparse":
        model.words.sparse = model.bags.sparse = False
        made = plan(model, world, gathered)
        model.words.sparse = True

    def train_once() -> None:
        attachment = attached(model, optimizer, made)
        try:
            loss(model, 0, rank).backward()
        finally:
            attachment.engine.monitor.failure = NotSupported("the backward pass failed")
            attachment.detach()

    return refusal(train_once)


@pytest.mark.parametrize(
    ("case", "words", "remedy"),
    [
        ("adamw", ".weight' has a sparse gradient, which optimizer AdamW", "SparseAdam"),
        ("decay", "SGD does not take with weight_decay", "group of its own"),
        ("mixed", "rows of variable 'words.weight' are gathered and others owned", "all_gather or"),
        ("became dense", "'words.weight' is synchronized by touched rows", "sparse=True"),
        ("became sparse", "'words.weight' has a sparse gradient, but the plan", "sparse=False"),
    ],
)
def test_unsupported_sparse_parameters_are_refused_by_name(
    pair: Ranks, case: str, words: str, remedy: str
) -> None:
    for answer in pair.run(refused, case):
        assert words in answer
        assert remedy in answer
