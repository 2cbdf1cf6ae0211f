"""A model that no device holds with all its gradients and optimizer state is placed by either
proposer, and trains on real ranks within the memory that torch's DDP runs out of."""

import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import autosync
from autosync.bundle import Bundle, make_bundle
from autosync.cluster import Device
from autosync.domain import Domain, Optimizer
from autosync.errors import DeviceMemoryExceeded
from autosync.extensions.offload.arena import Arena
from autosync.extensions.placement.policy import learned_placement
from autosync.extensions.placement.proposals import (
    EvaluatedPlacement,
    PlacementEvaluator,
    place_greedily,
)
from autosync.importing.importer import import_module
from autosync.search.designs.known_designs import all_reduce_5mb
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from tests.autosync.runtime.cases import gap
from tests.autosync.runtime.ranks import Ranks
from tests.domains import domain_of, grid_cluster
from tests.placed_models import loss

WIDTH, WIDE, BLOCKS = 32, 4096, 4
BATCH, STEPS = 4, 3
ROOM = 0.75
"""Of what plain replicas need: half of the blocks have room, with what deals copy; all have not."""


class Heavy(nn.Module):
    """Blocks of a megabyte each between two layers of nearly nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDTH))
            for _ in range(BLOCKS)
        )
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        for block in self.blocks:
            hidden = torch.tanh(hidden + block(hidden))
        out: Tensor = self.last(hidden)
        return out


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(5)
    model = Heavy()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, number: int) -> None:
    generator = torch.Generator().manual_seed(100 * number + rank)
    x = torch.randn(BATCH, WIDTH, generator=generator)
    optimizer.zero_grad()
    loss(model(x), x).backward()
    optimizer.step()


def domain(memory_bytes: int) -> Domain:
    graph = import_module(make()[0], (torch.zeros(BATCH, WIDTH),), loss, name="m", batch_size=BATCH)
    cluster = grid_cluster(2)
    devices = (Device("arena", memory_gb=memory_bytes / 1e9),)
    nodes = tuple(replace(node, devices=devices) for node in cluster.nodes)
    found = domain_of(graph, replace(cluster, nodes=nodes), 1e-3, Optimizer("adamw", True, 2))
    return replace(found, profile=replace(found.profile, device="arena"))


def placed(proposer: str, where: Domain) -> EvaluatedPlacement:
    propose = place_greedily if proposer == "greedy" else learned_placement
    return propose(PlacementEvaluator(where, TimelineSimulator()), all_reduce_5mb(where))


def ddp_bytes(rank: int, world: int) -> int:
    with Arena(10**12) as arena:
        train_ddp(rank, arena)
        return arena.take_peak_bytes()


def train_ddp(rank: int, arena: Arena) -> dict[str, Tensor]:
    model, optimizer = make()
    arena.count(model.parameters())
    network = DistributedDataParallel(model)
    for number in range(STEPS):
        step(network, optimizer, rank, number)
    return dict(model.state_dict())


def within(rank: int, world: int, memory_bytes: int, given: Bundle) -> float:
    """How far from torch's DDP with any memory the placed model ends within so much, of which DDP
    runs out."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    with Arena(10**12) as roomy:
        wanted = train_ddp(rank, roomy)
    with Arena(memory_bytes) as arena, pytest.raises(DeviceMemoryExceeded):
        train_ddp(rank, arena)
    with Arena(memory_bytes) as arena:
        model, optimizer = make()
        arena.count(model.parameters())
        model, optimizer = autosync.distribute(model, optimizer, given)
        for number in range(STEPS):
            step(model, optimizer, rank, number)
    found = model.state_dict()
    far = max(gap(found[name], wanted[name]) for name in wanted)
    autosync.detach(model)
    return far


@pytest.mark.parametrize("proposer", ["greedy", "policy"])
def test_a_model_that_does_not_fit_as_replicas_is_placed_and_trains(
    pair: Ranks, proposer: str
) -> None:
    memory_bytes = int(ROOM * max(pair.run(ddp_bytes)))
    where = domain(memory_bytes)
    base = PlacementEvaluator(where, TimelineSimulator()).evaluate([all_reduce_5mb(where)])[0]
    assert not base.fits
    found = placed(proposer, where)
    assert found.fits
    bundle = make_bundle(found.strategy, where)
    for far in pair.run(within, memory_bytes, bundle):
        assert far < 3e-6
