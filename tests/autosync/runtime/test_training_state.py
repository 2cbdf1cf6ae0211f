"""Checkpoints by torch.distributed.checkpoint: in parts, under another plan and number of ranks,
and by torch's own functions for state dicts."""

import copy
import io
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from autosync import TrainingState
from autosync.runtime.attachment import Attachment, attach
from autosync.runtime.transport import tensor_exchange
from tests.autosync.runtime.cases import MODELS, Case, loss_of, make_model, plan
from tests.autosync.runtime.distributing import largest_difference, refusal
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.training import OVERLAP
from tests.long_parameters import long_after

PLANS = {
    "all_reduce": Case(),
    "overlap": Case(method="rs", partition="even", schedule=OVERLAP),
    "zero": Case(method="zero", partition="pieces", schedule=OVERLAP),
    "servers": Case(method="ps", partition="uneven"),
    "mixed": Case(method="mixed", partition="even", groups=4),
}

OPTIMIZERS: dict[str, Callable[[list[Any]], Optimizer]] = {
    "momentum": lambda groups: torch.optim.SGD(groups, 0.1, 0.9, nesterov=True),
    "adamw": lambda groups: torch.optim.AdamW(groups, 0.01, amsgrad=True),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, 0.05, initial_accumulator_value=0.1),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, 0.01, momentum=0.5, centered=True),
    "nadam": lambda groups: torch.optim.NAdam(groups, 0.01),
    "plain": lambda groups: torch.optim.SGD(groups, 0.1),
}


class Job:
    """A model and an optimizer on the first ranks; of `case` None under torch's DDP."""

    def __init__(self, rank: int, case: Case | None, kind: str, group: Any = None, size: int = 2):
        self.rank, self.group = rank, group
        self.model = make_model(case.model if case else "mlp")
        parameters = list(self.model.parameters())
        groups = [
            {"params": parameters[::2], "weight_decay": 0.01 if kind != "plain" else 0.0},
            {"params": parameters[1::2], "lr": 0.05},
        ]
        self.optimizer = OPTIMIZERS[kind](groups)
        self.network: nn.Module = self.model
        self.attachment: Attachment | None = None
        if case is None:
            self.network = DistributedDataParallel(self.model, process_group=group)
            return
        names = tuple(name for name, p in self.model.named_parameters() if p.requires_grad)
        made = plan(case, self.model, size)
        self.attachment = attach(self.model, self.optimizer, made, names, group)

    def train(self, begin: int, end: int) -> None:
        for iteration in range(begin, end):
            self.optimizer.zero_grad()
            loss_of(self.network, iteration, self.rank).backward()
            self.optimizer.step()

    def held(self) -> Any:
        """Copies of values and of the whole optimizer state."""
        return copy.deepcopy([self.model.state_dict(), self.optimizer.state_dict()])

    def state(self) -> dict[str, Any]:
        return {"training": TrainingState(self.network, self.optimizer)}

    def end(self) -> None:
        if self.attachment is not None:
            self.attachment.detach(keep_state=False)


def moved(
    rank: int, world: int, folder: str, kind: str, saving: tuple[str, int], turn: int
) -> list[str]:
    """What differs by a bit where a checkpoint of some ranks under a plan is loaded under others,
    by one rank and by three in turn; where it goes on under its own, after training, too."""
    teams = {size: dist.new_group(list(range(size))) for size in range(1, world + 1)}
    name, size = saving
    wrong = []
    saved: Any = None
    ended: Any = None
    if rank < size:
        job = Job(rank, PLANS[name], kind, teams[size], size)
        job.train(0, 2)
        saved = job.held()
        save(job.state(), checkpoint_id=folder, process_group=teams[size])
        assert largest_difference(job.held(), saved) == 0, "saving changes nothing"
        job.train(2, 3)
        ended = job.held()
        job.end()
    everyone = [None] * world
    dist.all_gather_object(everyone, saved)
    sizes = ((1, 3)[(turn + number) % 2] for number in range(len(PLANS)))
    for loading in (*zip(PLANS, sizes, strict=True), saving):
        other, members = loading
        if rank >= members:
            continue
        job = Job(rank, PLANS[other], kind, teams[members], members)
        load(job.state(), checkpoint_id=folder, process_group=teams[members])
        if largest_difference(job.held(), everyone[0]):
            wrong.append(f"{loading}: loaded")
        if loading == saving:
            job.train(2, 3)
            if largest_difference(job.held(), ended):
                wrong.append(f"{loading}: resumed")
        job.end()
    return wrong


SAVED = (
    ("adamw", ("zero", 2)),
    ("adamw", ("all_reduce", 3)),
    ("momentum", ("mixed", 2)),
    ("momentum", ("servers", 3)),
    ("nadam", ("overlap", 2)),
    ("adagrad", ("zero", 3)),
    ("rmsprop", ("mixed", 3)),
    ("plain", ("zero", 2)),
)


@pytest.mark.parametrize("turn", long_after(1, [0, 1]))
@pytest.mark.parametrize("number", range(len(SAVED)))
def test_parts_are_loaded_under_any_plan(
    three: Ranks, tmp_path: Path, number: int, turn: int
) -> None:
    assert three.run(moved, str(tmp_path), *SAVED[number], number + turn) == [[], [], []]


def with_torch(rank: int, world: int, folder: str, kind: str, names: tuple[str, ...]) -> list[str]:
    """What differs where torch's DDP and each plan go on from each other's checkpoints, by torch's
    own functions and by TrainingState."""
    wrong = []
    before = Job(rank, None, kind)
    before.train(0, 2)
    saved = before.held()
    save(state_of(before), checkpoint_id=f"{folder}/ddp")
    before.train(2, 3)
    wanted = before.held()
    for name, case in ((name, PLANS[name]) for name in names):
        first, second = Job(rank, case, kind), Job(rank, case, kind)
        resume(first, f"{folder}/ddp")
        load(second.state(), checkpoint_id=f"{folder}/ddp")
        for way, job in (("get_state_dict", first), ("TrainingState", second)):
            if largest_difference(job.held(), saved):
                wrong.append(f"DDP to {name} by {way}")
        first.train(2, 3)
        if not largest_difference(first.held(), wanted) < 1e-6:
            wrong.append(f"{name} resumed from DDP")
        middle = first.held()
        save(first.state(), checkpoint_id=f"{folder}/{name}/parts")
        save(state_of(first), checkpoint_id=f"{folder}/{name}/whole")
        for form in ("parts", "whole"):
            after = Job(rank, None, kind)
            resume(after, f"{folder}/{name}/{form}")
            if largest_difference(after.held(), middle):
                wrong.append(f"{name} to DDP from {form}")
        first.end()
        second.end()
    return wrong


def state_of(job: Job) -> dict[str, Any]:
    model, optimizer = get_state_dict(job.network, job.optimizer)
    return {"training": {"model": model, "optimizer": optimizer}}


def resume(job: Job, folder: str) -> None:
    state = state_of(job)
    load(state, checkpoint_id=folder)
    set_state_dict(
        job.network,
        job.optimizer,
        model_state_dict=state["training"]["model"],
        optim_state_dict=state["training"]["optimizer"],
    )


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("adamw", ("all_reduce", "zero", "mixed")),
        ("momentum", ("overlap", "servers")),
        ("adagrad", ("zero", "servers")),
    ],
)
def test_torch_and_plans_read_each_other(
    pair: Ranks, tmp_path: Path, kind: str, names: tuple[str, ...]
) -> None:
    assert pair.run(with_torch, str(tmp_path), kind, names) == [[], []]


def with_fully_shard(rank: int, world: int, folder: str) -> list[float]:
    """Differences where torch's `fully_shard` and a plan go on from each other's checkpoints."""
    whole = StateDictOptions(full_state_dict=True)
    job = Job(rank, PLANS["zero"], "nadam")
    job.train(0, 2)
    saved = job.held()[1]["state"]
    save(job.state(), checkpoint_id=f"{folder}/plan")
    sharded = make_model("mlp")
    fully_shard(sharded)
    parameters = list(sharded.parameters())
    optimizer = torch.optim.NAdam([{"params": parameters[::2]}, {"params": parameters[1::2]}])
    load({"training": TrainingState(sharded, optimizer)}, checkpoint_id=f"{folder}/plan")
    found = get_state_dict(sharded, optimizer, options=whole)[1]["state"]
    wanted = get_state_dict(job.network, job.optimizer)[1]["state"]
    save({"training": TrainingState(sharded, optimizer)}, checkpoint_id=f"{folder}/sharded")
    other = Job(rank, PLANS["mixed"], "nadam")
    load(other.state(), checkpoint_id=f"{folder}/sharded")
    back = other.held()[1]["state"]
    job.end()
    other.end()
    return [largest_difference(found, wanted), largest_difference(back, saved)]


def test_fully_shard_and_plans_read_each_other(pair: Ranks, tmp_path: Path) -> None:
    assert pair.run(with_fully_shard, str(tmp_path)) == [[0, 0], [0, 0]]


def asked_first(rank: int, world: int, kind: str) -> list[str]:
    """torch makes the state of a fresh optimizer by a step on zeros: training that goes on from
    there is as under DDP, and a whole state on rank 0 goes to all."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    wanted = Job(rank, None, kind)
    get_state_dict(wanted.network, wanted.optimizer)
    wanted.train(0, 2)
    wrong = []
    for name, case in PLANS.items():
        job = Job(rank, case, kind)
        get_state_dict(job.network, job.optimizer)
        job.train(0, 2)
        if not largest_difference(job.held(), wanted.held()) < 1e-6:
            wrong.append(name)
        model, optimizer = get_state_dict(job.network, job.optimizer, options=options)
        assert bool(model) == bool(optimizer) == (rank == 0)
        other = Job(rank, case, kind)
        given = replace(options, broadcast_from_rank0=True)
        set_model_state_dict(other.network, model, options=given)
        set_optimizer_state_dict(other.network, other.optimizer, optimizer, options=given)
        (values, state), (wanted_values, wanted_state) = other.held(), job.held()
        if largest_difference([values, state["state"]], [wanted_values, wanted_state["state"]]):
            wrong.append(f"{name} from rank 0")
        other.end()
        job.end()
    return wrong


@pytest.mark.parametrize("kind", ["adamw", "momentum"])
def test_a_fresh_optimizer_is_asked_for_its_state(pair: Ranks, kind: str) -> None:
    assert pair.run(asked_first, kind) == [[], []]


def in_background(rank: int, world: int, folder: str, stages: str) -> float:
    """Difference between what was saved while training went on, and what was there."""
    job = Job(rank, PLANS["zero"], "adamw")
    job.train(0, 2)
    saved = job.held()
    writer = FileSystemWriter(folder) if stages == "writer" else None
    saving: Any = async_save(job.state(), checkpoint_id=folder, storage_writer=writer)
    job.train(2, 4)
    saving.result()
    other = Job(rank, PLANS["mixed"], "adamw")
    load(other.state(), checkpoint_id=folder)
    found = largest_difference(other.held(), saved)
    job.end()
    other.end()
    return found


@pytest.mark.parametrize("stages", ["default", "writer"])
def test_parts_are_copied_for_a_save_in_the_background(
    pair: Ranks, tmp_path: Path, stages: str
) -> None:
    assert pair.run(in_background, str(tmp_path), stages) == [0, 0]


class Counted:
    """A process group that notes the bytes that this rank receives by each operation."""

    def __init__(self, group: Any):
        self._group = group
        self.received: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def broadcast(self, tensors: list[Tensor], options: Any) -> Any:
        if options.rootRank != self._group.rank():
            self.received.append(tensors[0].nbytes)
        return self._group.broadcast(tensors, options)

    def recv(self, tensors: list[Tensor], *rest: Any) -> Any:
        self.received.append(tensors[0].nbytes)
        return self._group.recv(tensors, *rest)


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 2000), nn.Tanh(), nn.Linear(2000, 3))


def counted(rank: int, world: int, case: Case) -> tuple[dict[str, int], int, int]:
    """Bytes that a rank receives for each form of a checkpoint, and by its largest operation;
    bytes of the whole state."""
    with patch.dict(MODELS, wide=wide):
        job = Job(rank, case, "adamw", size=world)
    job.train(0, 1)
    assert job.attachment is not None
    engine = job.attachment.engine
    count = Counted(engine.control)
    engine.state = replace(engine.state, control=count)
    state = TrainingState(job.model, job.optimizer)
    forms: dict[str, Callable[[], dict[str, Any]]] = {
        "parts": state.state_dict,
        "one": lambda: state.whole(1),
        "all": job.optimizer.state_dict,
    }
    made, received = {}, {}
    with patch.object(tensor_exchange, "CHUNK_BYTES", PIECE):
        for form, make in forms.items():
            made[form] = make()
            received[form] = sum(count.received)
            largest = max(count.received, default=0)
            count.received.clear()
    assert bool(made["one"]) == (rank == 1)
    if rank == 1:
        assert largest_difference(made["one"]["optimizer"], made["all"]) == 0
    states = [entry.values() for entry in made["all"]["state"].values()]
    whole = sum(value.nbytes for values in states for value in values)
    job.end()
    return received, largest, whole


@pytest.mark.parametrize("method", ["zero", "ps"])
def test_a_rank_receives_what_it_asks_for(three: Ranks, method: str) -> None:
    """Beside the tensors, a list of the parts travels."""
    for rank, (received, largest, whole) in enumerate(
        three.run(counted, Case(model="wide", method=method))
    ):
        assert received["parts"] == 0
        assert received["one"] < (1.05 if rank == 1 else 0.05) * whole
        assert received["all"] < 1.05 * whole
        assert largest <= PIECE


PIECE = 16384


def misused(rank: int, world: int) -> list[str]:
    job = Job(rank, PLANS["zero"], "adamw")
    job.train(0, 1)
    state = TrainingState(job.model, job.optimizer).state_dict()["optimizer"]["state"]
    part = next(entry["exp_avg"] for entry in state.values() if "exp_avg" in entry)
    misuses: tuple[Callable[[], object], ...] = (
        lambda: torch.save(part, io.BytesIO()),
        lambda: pickle.dumps(part),
        lambda: part + 1,
        lambda: torch.zeros(part.shape).copy_(part),
        lambda: float(part.sum()),
    )
    words = [refusal(misuse) for misuse in misuses]
    job.end()
    return words


def test_a_part_is_never_taken_for_the_whole(pair: Ranks) -> None:
    for words in pair.run(misused):
        assert all("other ranks hold the rest" in each for each in words), words
