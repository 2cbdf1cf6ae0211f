"""A tree-LSTM on two ranks whose trees differ, under plans and under torch's DDP."""

import copy

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autosync
from tests.autosync.extensions.dynamic.sentiment import TreeClassifier, batch
from tests.autosync.runtime.cases import worst_difference
from tests.autosync.runtime.distributing import PLANS, distributed
from tests.autosync.runtime.ranks import Ranks

ITERATIONS = 4


def trained(rank: int, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for iteration in range(ITERATIONS):
        graphs, words, classes = batch(10 * iteration + rank)
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(graphs, words), classes).backward()
        optimizer.step()


def beside_ddp(rank: int, world: int, name: str) -> tuple[float, float]:
    """The largest difference from DDP's weights, and from the weights at the beginning."""
    torch.manual_seed(1)
    model = TreeClassifier()
    alone, start = copy.deepcopy(model), copy.deepcopy(model)
    trained(rank, DistributedDataParallel(alone), torch.optim.AdamW(alone.parameters(), lr=0.01))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    network, optimizer = distributed(rank, world, PLANS[name], model, optimizer)
    trained(rank, network, optimizer)
    autosync.detach(model)
    return worst_difference(model, alone), worst_difference(model, start)


def test_weights_are_those_of_ddp(pair: Ranks) -> None:
    for name in PLANS:
        for difference, moved in pair.run(beside_ddp, name):
            assert difference < 2e-6, name
            assert moved > 0.01
