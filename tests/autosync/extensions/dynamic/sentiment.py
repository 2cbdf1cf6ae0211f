"""A classifier of parse trees, and random sentences for it."""

import numpy as np
import torch
from torch import Tensor, nn

from autosync.extensions.dynamic.input_graphs import InputGraphs
from autosync.extensions.dynamic.lstm import ChildSumTreeLSTM
from tests.autosync.extensions.dynamic.drawn_graphs import random_binary_trees

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
