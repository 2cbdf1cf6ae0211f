"""One engine on a model at a time, and `autosync.detach` between two stages."""

import copy
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import autosync
from autosync.errors import NotSupported
from autosync.runtime.attached_models import ATTACHED
from autosync.runtime.attachment import attach
from autosync.runtime.device.streams import ONE_ORDER, Streams
from tests.autosync.runtime.cases import (
    Case,
    loss_of,
    make_model,
    make_optimizer,
    plan,
    train_reference,
    two_optimizers,
    worst_difference,
)
from tests.autosync.runtime.distributing import (
    DDP,
    ENGINES,
    PLANS,
    ddp_of,
    distributed,
    each_engine,
    each_plan,
    largest_difference,
    refusal,
    train,
)
from tests.autosync.runtime.ranks import Ranks


def two_stages(rank: int, world: int, *ways: Case) -> tuple[float, float, str]:
    """Train by a plan, detach, and go on by another way, beside torch's DDP all along."""
    model = make_model("mlp")
    alone, network = ddp_of(model)
    optimizer, beside = make_optimizer("adamw", model), make_optimizer("adamw", alone)
    given, kind = model, type(optimizer)
    between = float("inf")
    for stage, way in enumerate(ways):
        returned, optimizer = distributed(rank, world, way, model, optimizer)
        iterations = range(2 * stage, 2 * stage + 2)
        train(rank, returned, [optimizer], iterations)
        train(rank, network, [beside], iterations)
        model, optimizer = autosync.detach(returned)
        assert model is given
        assert type(optimizer) is kind
        between = largest_difference(optimizer.state_dict(), beside.state_dict())
        assert between < 3e-6
    again = refusal(lambda: autosync.detach(model))
    return worst_difference(model, alone), between, again


@pytest.mark.parametrize(("first", "second"), list(pairwise([DDP, *ENGINES.values()])), ids=ENGINES)
def test_a_second_stage_goes_on(pair: Ranks, first: Case, second: Case) -> None:
    for difference, between, again in pair.run(two_stages, first, second):
        assert difference < 3e-6
        assert between < 3e-6
        assert "is not distributed" in again


def twice(rank: int, world: int, case: Case) -> list[str]:
    model = make_model("mlp")
    optimizer = make_optimizer("sgd", model)
    network, _ = distributed(rank, world, case, model, optimizer)
    found = [
        refusal(lambda: distributed(rank, world, case, model, optimizer)),
        refusal(lambda: distributed(rank, world, case, network, optimizer)),
        refusal(lambda: distributed(rank, world, case, model, make_optimizer("sgd", model))),
    ]
    train(rank, network, [optimizer], range(case.iterations))
    autosync.detach(network)
    assert worst_difference(model, train_reference(case, world)) < 3e-6
    return found


@each_engine
def test_distributing_twice_is_refused(pair: Ranks, case: Case) -> None:
    for found in pair.run(twice, case):
        assert ["is distributed already" in words for words in found] == [True] * 3


def wrapped_after(rank: int, world: int, case: Case) -> list[str]:
    model = make_model("mlp")
    optimizer = make_optimizer("sgd", model)
    distributed(rank, world, case, model, optimizer)
    found = []
    for outer in (model, torch.nn.Sequential(model)):
        network = DistributedDataParallel(outer)
        found.append(refusal(lambda n=network: loss_of(n, 0, rank)))  # type: ignore[misc]
    del network
    train(rank, model, [optimizer], range(2))
    autosync.detach(model)
    return found


@each_plan
def test_ddp_around_a_distributed_model_is_refused(pair: Ranks, case: Case) -> None:
    for found in pair.run(wrapped_after, case):
        assert ["was put around a model (Sequential)" in words for words in found] == [True] * 2


def wrapped_before(rank: int, world: int, case: Case) -> list[str]:
    model = make_model("mlp")
    optimizer = make_optimizer("sgd", model)
    network: torch.nn.Module = DistributedDataParallel(model)
    found = [
        refusal(lambda: distributed(rank, world, case, model, optimizer)),
        refusal(lambda: distributed(rank, world, case, network, optimizer)),
    ]
    network = model
    distributed(rank, world, case, model, optimizer)  # DDP has gone
    train(rank, model, [optimizer], range(case.iterations))
    autosync.detach(model)
    assert worst_difference(model, train_reference(case, world)) < 3e-6
    return found


@each_plan
def test_a_model_in_ddp_is_refused(pair: Ranks, case: Case) -> None:
    for around, inside in pair.run(wrapped_before, case):
        assert "DistributedDataParallel is around it" in around
        assert "it is torch's DistributedDataParallel" in inside


def stale(rank: int, world: int) -> str:
    """The wrapper that detach took off cannot train beside the second stage."""
    model = make_model("mlp")
    network, _ = distributed(rank, world, DDP, model, make_optimizer("sgd", model))
    autosync.detach(network)
    return refusal(lambda: loss_of(network, 0, rank))


def test_a_detached_wrapper_says_so(pair: Ranks) -> None:
    for found in pair.run(stale):
        assert "after autosync.detach" in found


def clipping_goes(rank: int, world: int, case: Case) -> float:
    model = make_model("mlp")
    optimizer = make_optimizer("sgd", model)
    network, _ = distributed(rank, world, case, model, optimizer, 1e-9)
    train(rank, network, [optimizer], range(1))
    autosync.detach(network)
    alone, beside = ddp_of(model)
    theirs = make_optimizer("sgd", alone)
    theirs.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    network, _ = distributed(rank, world, case, model, optimizer)
    train(rank, network, [optimizer], range(1, 3))
    train(rank, beside, [theirs], range(1, 3))
    autosync.detach(network)
    return worst_difference(model, alone)


@each_engine
def test_clipping_ends_with_its_stage(pair: Ranks, case: Case) -> None:
    assert max(pair.run(clipping_goes, case)) < 3e-6


class Noting(Streams):
    """NCCL's order of messages; notes where the script's stream is waited for."""

    def __init__(self) -> None:
        super().__init__(ONE_ORDER)
        self.noted: list[str] = []

    def synchronize_current(self) -> None:
        self.noted.append("stream")


def ended_in_order(rank: int, world: int) -> list[str]:
    """What `detach` does first: wait for the script's stream, or end the process groups."""
    model, streams = make_model("cnn"), Noting()
    optimizer = make_optimizer("sgd", model)
    names = tuple(name for name, _ in model.named_parameters())
    made = attach(model, optimizer, plan(Case(), model, world), names, streams=streams)
    train(rank, model, [optimizer], range(1))
    end_groups = made.end_groups

    def noted_end() -> None:
        streams.noted.append("groups")
        end_groups()

    made.end_groups = noted_end
    streams.noted.clear()
    made.detach()
    return streams.noted


def test_module_buffers_have_arrived_before_groups_end(pair: Ranks) -> None:
    """On NCCL only the script's stream waits for them: to end a group aborts what is under way."""
    assert pair.run(ended_in_order) == [["stream", "groups"]] * 2


def left_alone(rank: int, world: int) -> tuple[str, bool]:
    """Rank 1 stops behind its last step(), and rank 0 detaches, which gathers the state."""
    model = make_model("mlp")
    optimizer = make_optimizer("sgd", model)
    kind = type(optimizer)
    distributed(rank, world, PLANS["sharded"], model, optimizer)
    train(rank, model, [optimizer], range(1))
    attached = ATTACHED.plan_of(model)
    assert attached is not None
    attached.flush()
    dist.barrier()
    if rank == 1:
        attached.stop(NotSupported("this rank has had enough."))
    said = refusal(lambda: autosync.detach(model))
    return said, ATTACHED.plan_of(model) is None and type(optimizer) is kind


def test_the_plan_is_off_where_a_peer_is_lost_while_it_is_taken_off(pair: Ranks) -> None:
    (first, first_off), (second, second_off) = pair.run(left_alone)
    assert first == f"rank 1 stopped: {second}"
    assert first_off
    assert second_off


def one_of_two_has_stepped(rank: int, world: int) -> str:
    """What detach says then; afterwards the script goes on, and detaches."""
    model = make_model("mlp")
    both = two_optimizers(model)
    distributed(rank, world, PLANS["sharded"], model, both)
    loss_of(model, 0, rank).backward()
    both[0].step()
    said = refusal(lambda: autosync.detach(model))
    both[1].step()
    train(rank, model, both, range(1, 2))
    autosync.detach(model)
    return said


def test_the_plan_stays_on_where_an_optimizer_has_yet_to_step(pair: Ranks) -> None:
    for said in pair.run(one_of_two_has_stepped):
        assert "the model went on before optimizer AdamW had stepped" in said
