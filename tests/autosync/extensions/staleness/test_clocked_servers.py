"""Parameter servers with clocks: how old values may be, that no update is lost, and that what is
saved goes on."""

import copy
import os
import pickle
import random
import re
import signal
import sys
import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn.parallel import DistributedDataParallel

import autosync
from autosync.bundle import make_bundle
from autosync.errors import AutosyncError
from autosync.extensions.staleness.attachment import attach
from autosync.extensions.staleness.clocked import AMP, ClockedAttachment, ScalerMark
from autosync.extensions.staleness.document import Staleness, late_by
from autosync.runtime.transport.base import SynchronizationFailed
from autosync.strategy import Schedule
from tests.autosync.runtime.cases import (
    Case,
    domain,
    iterate,
    loss_of,
    make_model,
    make_optimizer,
    plan,
    strategy,
    train_reference,
    weights,
    worst_difference,
)
from tests.autosync.runtime.distributing import refusal
from tests.autosync.runtime.ranks import Ranks, ranks

SERVERS = Case(method="ps", groups=3)
IN_STEP = (
    SERVERS,
    replace(SERVERS, partition="uneven", shares=(0.75, 0.25)),
    replace(SERVERS, partition="pieces", groups=5),
    replace(SERVERS, model="cnn"),
    replace(SERVERS, model="tied"),
    replace(SERVERS, model="branching", optimizer="plain"),
)


class Counting(nn.Module):
    """Its gradients are what it is given, whatever its values are, so that updates of small
    integers add up exactly in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.zeros(3, 4))
        self.vector = nn.Parameter(torch.ones(5))
        self.scalar = nn.Parameter(torch.tensor(2.0))

    def forward(self, gradients: list[Tensor]) -> Tensor:
        products = (p * g for p, g in zip(self.parameters(), gradients, strict=True))
        return torch.stack([product.sum() for product in products]).sum()


SHARES = (0.5, 0.25, 0.25)
RATE, MOMENTUM = 2.0**-3, 0.5


def integers(iteration: int, rank: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(97 * iteration + rank)
    shapes = [p.shape for p in Counting().parameters()]
    return [torch.randint(-4, 5, shape, generator=generator).float() for shape in shapes]


def distributed(
    rank: int, world: int, case: Case, staleness: int, allowed: bool = True
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """By `autosync.distribute`, as a script does it."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = make_model(case.model)
    optimizer = make_optimizer(case.optimizer, model)
    where = domain(model, world)
    late = strategy(case, where.graph, world).carrying(Staleness(staleness))
    bundle = make_bundle(late, where)
    return autosync.distribute(model, optimizer, bundle, allow_inexact=allowed)


def counting(world: int, staleness: int, momentum: float = 0.0) -> ClockedAttachment:
    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=momentum)
    case = replace(SERVERS, shares=SHARES[:world] if world == 3 else ())
    return attached(model, optimizer, case, world, staleness)


def attached(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    case: Case,
    world: int,
    staleness: int,
    max_grad_norm: float | None = None,
) -> ClockedAttachment:
    names = tuple(name for name, p in model.named_parameters() if p.requires_grad)
    made = replace(plan(case, model, world), extensions=late_by(staleness))
    group = dist.group.WORLD
    assert group is not None
    lagging = attach(model, optimizer, made, names, group, max_grad_norm=max_grad_norm)
    assert isinstance(lagging, ClockedAttachment)
    return lagging


def count(made: ClockedAttachment, iteration: int, rank: int) -> None:
    made.given.zero_grad()
    made.model(integers(iteration, rank)).backward()
    made.given.step()


def counted(iterations: int, shares: tuple[float, ...], momentum: float = 0.0) -> list[Tensor]:
    """One process: the values that all updates add up to."""
    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=momentum)
    for iteration in range(iterations):
        drawn = [integers(iteration, rank) for rank in range(len(shares))]
        for index, parameter in enumerate(model.parameters()):
            parts = [share * one[index] for share, one in zip(shares, drawn, strict=True)]
            parameter.grad = torch.stack(parts).sum(0)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def in_step(rank: int, world: int) -> list[float]:
    found = []
    for case in IN_STEP:
        model = make_model(case.model)
        made = attached(model, make_optimizer(case.optimizer, model), case, world, 0)
        iterate(model, made.given, rank, range(case.iterations))
        before = worst_difference(model, train_reference(case, world))
        assert set(made.ages) == {0}
        made.detach()
        found.append(max(before, worst_difference(model, train_reference(case, world))))
    return found


def test_without_staleness_it_is_the_synchronous_plan(pair: Ranks) -> None:
    for found in pair.run(in_step):
        assert max(found) < 2e-6


def adds_up(rank: int, world: int, staleness: int) -> tuple[list[list[float]], int]:
    made = counting(world, staleness)
    waits = random.Random(rank)
    for iteration in range(40):
        time.sleep(0.02 * (waits.random() < 0.2))
        count(made, iteration, rank)
    made.detach()
    values = [p.detach().flatten().tolist() for p in made.model.parameters()]
    return values, max(made.ages)


@pytest.mark.parametrize("staleness", [1, 4])
def test_no_update_is_lost_whoever_is_late(three: Ranks, staleness: int) -> None:
    expected = [value.flatten().tolist() for value in counted(40, SHARES)]
    for values, oldest in three.run(adds_up, staleness):
        assert values == expected
        assert oldest <= staleness


def delayed(rank: int, world: int, staleness: int) -> tuple[bool, int]:
    """Rank 1 begins once rank 0 has taken the s steps that it may. Whether rank 0 then waits, and
    how old its values were at most."""
    store = dist.distributed_c10d._get_default_store()
    made = counting(world, staleness)
    waited = True
    for iteration in range(staleness + 3):
        key = f"clocks/{staleness}"
        if rank == 1 and iteration == 0:
            store.wait([f"{key}/{staleness - 1}"], timedelta(seconds=60))
            try:
                store.wait([f"{key}/{staleness}"], timedelta(seconds=1))
                waited = False
            except dist.DistStoreError:
                pass
        count(made, iteration, rank)
        if rank == 0:
            store.set(f"{key}/{iteration}", "stepped")
    made.detach()
    return waited, max(made.ages)


@pytest.mark.parametrize("staleness", [1, 4])
def test_a_rank_reads_values_s_iterations_old_and_waits_beyond(pair: Ranks, staleness: int) -> None:
    first, second = pair.run(delayed, staleness)
    assert (first[0], second[0]) == (True, True)
    assert first[1] == staleness
    assert second[1] <= staleness


def own_updates(rank: int, world: int) -> bool:
    """Of the first iterations, which rank 1 does not take yet: this rank's updates alone."""
    store = dist.distributed_c10d._get_default_store()
    made = counting(world, 3)
    if rank == 1:
        store.wait(["own"], timedelta(seconds=60))
    for iteration in range(3):
        count(made, iteration, rank)
    found = [p.detach().clone() for p in made.model.parameters()]
    if rank == 0:
        store.set("own", "read")
    made.detach()
    mine = counted(3, (0.5,))
    return all(torch.equal(*pair) for pair in zip(found, mine, strict=True)) or rank == 1


def test_a_rank_reads_its_own_updates_at_once(pair: Ranks) -> None:
    assert pair.run(own_updates) == [True, True]


def resumed(rank: int, world: int, half: int) -> tuple[list[list[float]], str]:
    made = counting(world, 2, MOMENTUM)
    for iteration in range(half):
        count(made, iteration, rank)
    saved = copy.deepcopy((made.model.state_dict(), made.given.state_dict()))
    text = str(saved)  # which training goes on in
    again = Counting()
    again.load_state_dict(saved[0])
    optimizer = torch.optim.SGD(again.parameters(), lr=RATE, momentum=MOMENTUM)
    optimizer.load_state_dict(saved[1])
    case = replace(SERVERS, shares=SHARES)
    second = attached(again, optimizer, case, world, 2)
    for one in (made, second):
        for iteration in range(half, 12):
            count(one, iteration, rank)
        one.detach()
    return [weights(one.model).tolist() for one in (made, second)], text


@pytest.mark.parametrize("half", [1, 6])
def test_a_resumed_job_trains_as_an_uninterrupted_one(three: Ranks, half: int) -> None:
    """Momentum included, which every rank has of its own and a checkpoint the mean of."""
    expected = torch.cat([value.flatten() for value in counted(12, SHARES, MOMENTUM)]).tolist()
    answers = three.run(resumed, half)
    assert len({saved for _, saved in answers}) == 1
    for finals, _ in answers:
        assert finals == [expected, expected]


def resumed_in_place(rank: int, world: int, folder: str) -> list[list[float]]:
    """One job trains on behind its checkpoint, the next goes on from it: that is read into the
    parameters' own memory."""
    finals = []
    for begin in (0, 6):
        made = counting(world, 2, MOMENTUM)
        state = {"training": autosync.TrainingState(made.model, made.given)}
        if begin:
            load(state, checkpoint_id=folder)
        for iteration in range(begin, 12):
            if iteration == 6 and not begin:
                save(state, checkpoint_id=folder)
            count(made, iteration, rank)
        made.detach()
        finals.append(weights(made.model).tolist())
    return finals


def test_a_job_resumes_from_what_torch_reads_into_its_parameters(
    three: Ranks, tmp_path: Path
) -> None:
    expected = torch.cat([value.flatten() for value in counted(12, SHARES, MOMENTUM)]).tolist()
    assert three.run(resumed_in_place, str(tmp_path)) == [[expected, expected]] * 3


def loaded(rank: int, world: int, wrapped: bool) -> list[float]:
    """wrapped: what is loaded is a module of the model."""
    network = Counting()
    model: nn.Module = nn.Sequential(network) if wrapped else network
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    made = attached(model, optimizer, replace(SERVERS, shares=SHARES), world, 2)
    saved = copy.deepcopy(network.state_dict())
    for iteration in range(5):
        count(made, iteration, rank)
    network.load_state_dict(saved)
    for iteration in range(3):
        count(made, iteration, rank)
    made.detach()
    return weights(made.model).tolist()


@pytest.mark.parametrize("wrapped", [False, True])
def test_servers_go_on_from_what_is_loaded(three: Ranks, wrapped: bool) -> None:
    expected = torch.cat([value.flatten() for value in counted(3, SHARES)]).tolist()
    assert three.run(loaded, wrapped) == [expected] * 3


def averaged(rank: int, world: int) -> tuple[list[str], list[float]]:
    """Saved while an average of weights is in the model of rank 1, and behind that."""
    made = counting(world, 1)
    for iteration in range(3):
        count(made, iteration, rank)
    plain = [parameter.detach().clone() for parameter in made.parameters]
    for parameter in made.parameters:
        parameter.data.add_(rank)
    said = [refusal(made.model.state_dict), refusal(made.given.state_dict)]
    for parameter, value in zip(made.parameters, plain, strict=True):
        parameter.data.copy_(value)
    made.model.state_dict()
    count(made, 3, rank)
    made.given.state_dict()
    made.detach()
    return said, weights(made.model).tolist()


def test_an_average_that_is_swapped_in_is_not_replaced_by_what_is_saved(pair: Ranks) -> None:
    expected = torch.cat([value.flatten() for value in counted(4, (0.5, 0.5))]).tolist()
    for said, values in pair.run(averaged):
        for words, call in zip(said, ("model.state_dict()", "optimizer.state_dict()"), strict=True):
            assert "the script has written into variable 'matrix' on rank 1" in words
            assert f"{call} would put the servers' values in its place" in words
        assert values == expected


def evaluated(rank: int, world: int) -> list[str]:
    """Saved behind forward passes, which scale rows of a table."""
    model = nn.Sequential(nn.Embedding(5, 6, max_norm=0.1), nn.Linear(6, 3))
    made = attached(model, torch.optim.SGD(model.parameters(), lr=RATE), SERVERS, world, 1)
    model(torch.arange(5))
    said = [refusal(model.state_dict)]
    model(torch.arange(5))
    said.append(refusal(made.given.state_dict))
    made.detach()
    return said


def test_a_table_that_a_forward_pass_renormalizes_can_be_saved(pair: Ranks) -> None:
    assert pair.run(evaluated) == [["", ""]] * 2


def adam_states(rank: int, world: int) -> tuple[bool, list[float], list[float]]:
    """Rank 0's branch differs from rank 1's, so each lacks the state of a layer."""
    model = make_model("branching")
    case = replace(SERVERS, model="branching")
    made = attached(model, torch.optim.AdamW(model.parameters(), lr=0.01), case, world, 1)
    iterate(model, made.given, rank, range(6))
    mine = {p: state["exp_avg"].clone() for p, state in made.given.state.items()}
    state = made.given.state_dict()
    plain = torch.optim.AdamW(copy.deepcopy(model).parameters(), lr=0.01)
    plain.load_state_dict(state)
    made.detach()
    means, own = [], []
    for parameter in made.parameters:
        means += made.given.state[parameter]["exp_avg"].flatten().tolist()
        own += mine.get(parameter, torch.zeros_like(parameter)).flatten().tolist()
    return len(plain.state) == len(made.given.state), means, own


def test_a_checkpoint_has_the_mean_of_the_ranks_states(pair: Ranks) -> None:
    (fits, means, first), (_, same, second) = pair.run(adam_states)
    assert fits
    assert means == same
    expected = (torch.tensor(first) + torch.tensor(second)) / 2
    torch.testing.assert_close(torch.tensor(means), expected)


def orders_in_memory(rank: int, world: int) -> tuple[bool, bool]:
    """Whether some weight is not in row-major order, and each one's mean state is in its order."""
    model = make_model("mlp")
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data = parameter.detach().t().contiguous().t()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    made = attached(model, optimizer, SERVERS, world, 1)
    iterate(model, optimizer, rank, range(2))
    optimizer.state_dict()
    made.detach()
    laid = any(not parameter.is_contiguous() for parameter in model.parameters())
    alike = all(
        optimizer.state[parameter]["exp_avg"].stride() == parameter.stride()
        for parameter in model.parameters()
    )
    return laid, alike


def test_the_mean_state_lies_in_memory_as_its_parameter(pair: Ranks) -> None:
    """Fused updates go through both in the order of memory."""
    assert pair.run(orders_in_memory) == [(True, True)] * 2


def test_a_fused_optimizer_keeps_its_own_mark_for_scalers() -> None:
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(2))], fused=True)
    ScalerMark(optimizer).remove()
    assert vars(optimizer)[AMP] is True
    plain = torch.optim.AdamW([nn.Parameter(torch.zeros(2))])
    ScalerMark(plain).remove()
    assert AMP not in vars(plain)


def left(rank: int, world: int) -> str:
    """Rank 1 leaves after one step; rank 0 goes on for as long as it may."""
    made = counting(world, 2)
    words = ""
    count(made, 0, rank)
    try:
        if rank == 1:
            made.leave()
        for iteration in range(1, 5 if rank == 0 else 1):
            count(made, iteration, rank)
    except SynchronizationFailed as error:
        words = f"after {made.client.iterations - 1} steps: {error}"
    made.at_exit()
    return words


def test_waiting_for_a_rank_that_has_left_raises(pair: Ranks) -> None:
    words, _ = pair.run(left)
    assert words.startswith("after 3 steps: rank 1 has left")


def failed(rank: int, world: int) -> None:
    """Rank 1's script has failed, and rank 0 waits for the end of its process alone."""
    made = counting(world, 1)
    count(made, 0, rank)
    made.flush()  # no update of rank 0 is still on its way
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.wait(["failed"], timedelta(seconds=60))
        made.at_exit()
        return
    with (
        patch.object(sys, "last_value", ValueError("its own error"), create=True),
        patch("autosync.extensions.staleness.clocked.EXIT_SECONDS", 0.1),
    ):
        made.at_exit()
    store.set("failed", "")


def test_a_rank_whose_script_has_failed_does_not_serve_to_the_end(pair: Ranks) -> None:
    pair.run(failed)


def refuses(rank: int, world: int, culprit: int, what: str) -> str:
    """The culprit does in its second iteration what it may not, and its script ends of it."""
    made = counting(world, 1)
    said = "no error"
    try:
        for iteration in range(5):
            if (rank, iteration) == (culprit, 1):
                if what == "group":
                    made.given.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
                elif what == "scaler":
                    made.given.__dict__["grad_scale"] = torch.ones(1)
            count(made, iteration, rank)
    except AutosyncError as error:
        said = f"{type(error).__name__}: {error}"
    made.at_exit()
    return said


@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize(
    ("what", "words"), [("group", "parameter groups was changed"), ("scaler", "a GradScaler steps")]
)
def test_waiting_for_a_rank_that_refused_raises_its_reason(
    three: Ranks, what: str, words: str, culprit: int
) -> None:
    answers = three.run(refuses, culprit, what)
    why = answers.pop(culprit)
    kind, _, said = why.partition(": ")
    assert words in said
    assert answers == [f"{kind}: rank {culprit} stopped: {said}"] * 2


def survive(rank: int, world: int, victim: int) -> tuple[str, bool]:
    """The error on a survivor, and whether it is raised again and then has its model back."""
    made = counting(world, 1)
    try:
        for iteration in range(8):
            if rank == victim and iteration == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            count(made, iteration, rank)
    except SynchronizationFailed as error:
        with pytest.raises(SynchronizationFailed, match=re.escape(str(error))):
            count(made, 0, rank)
        with pytest.raises(SynchronizationFailed, match=re.escape(str(error))):
            made.detach()
        return str(error), "no_sync" not in made.model.__dict__ and not made.handles
    return "no error", False


def test_a_killed_rank_is_an_error_on_every_survivor() -> None:
    """Every rank is a server; rank 0 holds the store, too."""
    victim = 1
    with ranks(3, timeout_seconds=30.0) as pool:
        answers = pool.answers(survive, victim)
        for process in pool.processes:  # torch's own goodbye waits for the dead
            process.kill()
    assert answers.pop(victim) == ("error", "died")
    for kind, answer in answers:
        assert kind == "ok", answer
        assert "A peer died" in answer[0]
        assert answer[1]


def uneven(rank: int, world: int) -> str:
    made = counting(world, 4)
    for iteration in range(2 + rank):
        count(made, iteration, rank)
    return refusal(made.detach)


def test_ranks_that_have_taken_other_numbers_of_steps_are_told(pair: Ranks) -> None:
    for words in pair.run(uneven):
        assert "the ranks have taken [2, 3] steps" in words


def clipped(rank: int, world: int, by_closure: bool) -> float:
    """Each rank's own gradient, to a norm of 1."""
    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    made = attached(model, optimizer, SERVERS, world, 0, max_grad_norm=1.0)
    before = [p.detach().clone() for p in model.parameters()]
    if by_closure:
        optimizer.step(lambda: float(backward_of(model)))
    else:
        count(made, 0, 0)  # the same on every rank
    made.detach()
    pairs = zip(model.parameters(), before, strict=True)
    return float(torch.cat([(p.detach() - b).flatten() for p, b in pairs]).norm())


def backward_of(model: nn.Module) -> Tensor:
    loss: Tensor = model(integers(0, 0))
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("by_closure", [False, True])
def test_a_rank_clips_its_own_gradient(pair: Ranks, by_closure: bool) -> None:
    assert pair.run(clipped, by_closure) == pytest.approx([1.0, 1.0], rel=1e-5)


def trained(rank: int, world: int) -> tuple[float, float, list[float]]:
    model, optimizer = distributed(rank, world, replace(SERVERS, optimizer="adamw"), 3)
    first = float(loss_of(model, 0, 0).detach())
    for _ in range(30):
        with model.no_sync():  # type: ignore[operator]
            optimizer.zero_grad()
            loss_of(model, 0, rank).backward()
        optimizer.step()
    plain, same = autosync.detach(model)
    assert plain is model
    assert same is optimizer
    assert not model.__dict__.get("no_sync")
    return first, float(loss_of(model, 0, 0).detach()), weights(model).tolist()


def test_a_script_trains_and_gets_equal_replicas(pair: Ranks) -> None:
    answers = pair.run(trained)
    assert answers[0][2] == answers[1][2]
    for first, last, _ in answers:
        assert last < first


def copied(rank: int, world: int) -> list[bool]:
    """A copy of the model is plain, as one of torch's AveragedModel must be."""
    model, optimizer = distributed(rank, world, SERVERS, 2)
    iterate(model, optimizer, rank, range(3))
    copies = (copy.deepcopy(model), pickle.loads(pickle.dumps(model)))
    found = [worst_difference(model, one) == 0.0 for one in copies]
    for one in copies:
        one.state_dict()
        loss_of(one, 0, rank).backward()
    iterate(model, optimizer, rank, range(3, 5))
    autosync.detach(model)
    return found


def test_a_copy_of_the_model_knows_nothing_of_its_plan(pair: Ranks) -> None:
    assert pair.run(copied) == [[True] * 2] * 2


def refused(rank: int, world: int) -> dict[str, str]:
    found = {}

    overlapping = replace(SERVERS, schedule=Schedule(overlap_forward=True))
    for name, case, allowed in (
        ("not asked", SERVERS, False),
        ("all-reduced", Case(), True),
        ("mixed", Case(method="mixed"), True),
        ("overlapping", overlapping, True),
    ):
        found[name] = refusal(partial(distributed, rank, world, case, 2, allowed))
    model, optimizer = distributed(rank, world, SERVERS, 2)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(model, 0, rank)).backward()
    found["scaled"] = refusal(lambda: scaler.step(optimizer))
    found["in DDP"] = refusal(lambda: loss_of(DistributedDataParallel(model), 0, rank))
    autosync.detach(model)
    return found


def test_unsupported_uses_of_stale_servers_are_refused(pair: Ranks) -> None:
    for found in pair.run(refused):
        assert "allow_inexact=True" in found["not asked"]
        for name in ("all-reduced", "mixed"):
            assert "travels otherwise than between its owner and all ranks" in found[name]
        assert "continue during the next forward pass" in found["overlapping"]
        assert "GradScaler" in found["scaled"]
        assert "was put around a model (Sequential)" in found["in DDP"]
