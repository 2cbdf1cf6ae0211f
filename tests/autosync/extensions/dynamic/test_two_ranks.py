"""A tree-LSTM on two ranks whose trees differ, under plans and under torch's DDP."""

import copy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import autosync
from autosync.extensions.dynamic.input_graphs import InputGraphs
from autosync.extensions.dynamic.lstm import ChildSumTreeLSTM
from tests.autosync.extensions.dynamic.drawn_graphs import random_binary_trees
from tests.autosync.runtime.cases import worst_difference
from tests.autosync.runtime.distributing import PLANS, distributed
from tests.autosync.runtime.ranks import Ranks

ITERATIONS = 4
WORDS, CLASSES = 11, 3


class TreeClassifier(nn.Module):
    """Words are at the leaves; inner vertices have word 0. The root's state tells the class."""

    def __init__(self, width: int = 6, cells: int = 8):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.tree = ChildSumTreeLSTM(width, cells)
        self.head = nn.Linear(cells, CLASSES)

    def forward(self, graphs: InputGraphs, words: Tensor) -> Tensor:
        states = self.tree(graphs, self.words(words))
        classes: Tensor = self.head(states[torch.from_numpy(graphs.roots)])
        return classes


def batch(seed: int, samples: int = 4) -> tuple[InputGraphs, Tensor, Tensor]:
    """Graphs, the word of each vertex, and the class of each sample."""
    rng = np.random.default_rng(seed)
    graphs = random_binary_trees(rng, samples, 7)
    leaves = np.diff(graphs.first_child) == 0
    words = np.where(leaves, rng.integers(1, WORDS, size=graphs.vertices), 0)
    return graphs, torch.from_numpy(words), torch.from_numpy(rng.integers(0, CLASSES, samples))


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
