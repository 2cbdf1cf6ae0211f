"""Checkpoints in parts where the state is not one dense tensor a variable: several optimizers, rows
of sparse tables, placed modules, other memory formats, unused variables."""

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import SGD, Optimizer

import autosync
from autosync import TrainingState
from autosync.runtime.attachment import Attachment, attach, attachment_of
from autosync.strategy import ParameterServer, ReduceScatter, Synchronizer
from tests.autosync.runtime import rows
from tests.autosync.runtime.cases import (
    Case,
    loss_of,
    make_model,
    make_optimizer,
    plan,
    two_optimizers,
)
from tests.autosync.runtime.distributing import (
    CASES,
    DDP,
    bundle_of,
    largest_difference,
    placed_bundle_of,
)
from tests.autosync.runtime.ranks import Ranks

Optimizers = Optimizer | list[Optimizer]
Loss = Callable[[nn.Module, int, int], Tensor]
Job = tuple[nn.Module, Optimizers, Attachment, Loss]


def attached(model: nn.Module, optimizer: Optimizers, made: Any, loss: Loss = loss_of) -> Job:
    names = tuple(name for name, p in model.named_parameters() if p.requires_grad)
    return model, optimizer, attach(model, optimizer, made, names), loss


def several(world: int) -> Job:
    model = make_model("mlp")
    case = Case(method="mixed", partition="uneven", groups=4)
    return attached(model, two_optimizers(model), plan(case, model, world))


def channels_last(world: int) -> Job:
    model = make_model("cnn")
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in the stub
    case = Case("cnn", method="zero", partition="pieces")
    return attached(model, make_optimizer("adamw", model), plan(case, model, world))


def branching(world: int) -> Job:
    """A layer that no rank has used has no state."""
    model = make_model("branching")
    case = Case("branching", method="zero")
    return attached(model, make_optimizer("adamw", model), plan(case, model, world))


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.words = nn.Embedding(20, 4, sparse=True)
        self.out = nn.Linear(4, 3)

    def forward(self, indices: Tensor) -> Tensor:
        found: Tensor = self.out(self.words(indices))
        return found


def of_words(model: nn.Module, iteration: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(50 * iteration + rank)
    result: Tensor = model(torch.randint(20, (3,), generator=generator)).square().mean()
    return result


def owned_rows(shard: int, name: str, sparse: bool, world: int) -> tuple[int, Synchronizer]:
    if not sparse:
        return 1, ReduceScatter(9, sharded_update=True)
    return 3, ParameterServer(shard % world, shard)


def momentum_of_rows(world: int) -> Job:
    model = Tables()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    return attached(model, optimizer, rows.plan(model, world, owned_rows), of_words)


def sums_of_rows(world: int) -> Job:
    # torch builds a sparse tensor without saying whether it checks it
    torch.sparse.check_sparse_tensor_invariants.disable()
    model = Tables()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    return attached(model, optimizer, rows.plan(model, world, owned_rows), of_words)


def placed(world: int) -> Job:
    """The last layer lives on rank 0 alone."""
    os.environ["AUTOSYNC_HOST"] = f"host{dist.get_rank()}"
    model = make_model("mlp")
    optimizer = make_optimizer("adamw", model)
    autosync.distribute(model, optimizer, placed_bundle_of(model, world))
    made = attachment_of(model)
    assert made is not None
    return model, optimizer, made, loss_of


JOBS = (several, channels_last, branching, momentum_of_rows, sums_of_rows, placed)


def train(job: Job, rank: int, begin: int, end: int) -> None:
    model, optimizer, _, loss = job
    for iteration in range(begin, end):
        for each in listed(optimizer):
            each.zero_grad()
        loss(model, iteration, rank).backward()
        for each in listed(optimizer):
            each.step()


def listed(optimizer: Optimizers) -> Sequence[Optimizer]:
    return [optimizer] if isinstance(optimizer, Optimizer) else optimizer


def held(job: Job) -> Any:
    states = [each.state_dict() for each in listed(job[1])]
    return copy.deepcopy([job[0].state_dict(), dense(states)])


def dense(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to_dense() if value.is_sparse else value
    if isinstance(value, dict):
        return {key: dense(item) for key, item in value.items()}
    return [dense(item) for item in value] if isinstance(value, list) else value


def resumed(rank: int, world: int, make: Callable[[int], Job], folder: str) -> list[str]:
    """What differs by a bit between training that goes on from state_dict(), and from
    torch.distributed.checkpoint in parts and by torch's functions."""
    first = make(world)
    train(first, rank, 0, 2)
    values = copy.deepcopy(first[0].state_dict())
    states = [copy.deepcopy(each.state_dict()) for each in listed(first[1])]
    by_torch = make is not momentum_of_rows  # torch saves no sparse tensors
    save({"training": TrainingState(first[0], first[1])}, checkpoint_id=f"{folder}/parts")
    if by_torch:
        model, optimizer = get_state_dict(first[0], first[1])
        save({"training": {"model": model, "optimizer": optimizer}}, checkpoint_id=f"{folder}/all")
    second = make(world)
    second[0].load_state_dict(values)
    for each, of_each in zip(listed(second[1]), states, strict=True):
        each.load_state_dict(of_each)
    wanted = held(second)
    train(second, rank, 2, 3)
    ended = held(second)
    wrong = []
    for form in ("parts", "all") if by_torch else ("parts",):
        third = make(world)
        if form == "parts":
            parts = {"training": TrainingState(third[0], third[1])}
            load(parts, checkpoint_id=f"{folder}/parts")
        else:
            model, optimizer = get_state_dict(third[0], third[1])
            state = {"training": {"model": model, "optimizer": optimizer}}
            load(state, checkpoint_id=f"{folder}/all")
            set_state_dict(third[0], third[1], model_state_dict=model, optim_state_dict=optimizer)
        if largest_difference(held(third), wanted):
            wrong.append(f"{form}: loaded")
        train(third, rank, 2, 3)
        if largest_difference(held(third), ended):
            wrong.append(f"{form}: resumed")
        third[2].detach(keep_state=False)
    for job in (first, second):
        job[2].detach(keep_state=False)
    return wrong


@pytest.mark.parametrize("make", JOBS)
def test_training_goes_on_as_from_a_whole_state(
    pair: Ranks, tmp_path: Any, make: Callable[[int], Job]
) -> None:
    assert pair.run(resumed, make, str(tmp_path)) == [[], []]


def of_a_part(rank: int, world: int, case: Case) -> list[bool]:
    """Ranks 1 and 2 train by themselves: whether this one gets the whole state that is asked for on
    the first of them, and on the second."""
    group = dist.new_group([1, 2])
    if rank == 0:
        return []
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = make_model("mlp")
    names = list(model.state_dict())
    given, late = bundle_of(case, model, 2), case.staleness > 0
    network, optimizer = autosync.distribute(
        model, make_optimizer("sgd", model), given, group, allow_inexact=late
    )
    loss_of(network, 0, rank).backward()
    optimizer.step()
    state = TrainingState(network, optimizer)
    found = [state.whole(place) for place in range(2)]
    assert all(list(each["model"]) == names for each in found if each)  # without DDP's `module.`
    autosync.detach(network)
    return [bool(each) for each in found]


@pytest.mark.parametrize("case", [DDP, *CASES.values()], ids=["ddp", *CASES])
def test_a_rank_is_counted_in_the_process_group_of_the_plan(three: Ranks, case: Case) -> None:
    assert three.run(of_a_part, case) == [[], [True, False], [False, True]]
