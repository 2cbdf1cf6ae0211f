"""Input graphs drawn at random."""

import numpy as np

from autosync.extensions.dynamic.input_graphs import (
    ROOT,
    InputGraphs,
    chains,
    graphs_of_children,
    trees,
)


def random_trees(rng: np.random.Generator, samples: int, most_vertices: int) -> InputGraphs:
    """Of any shape, numbered at random."""
    parents = []
    for _ in range(samples):
        count = int(rng.integers(1, most_vertices + 1))
        number = rng.permutation(count)
        parent = np.full(count, ROOT)
        for vertex in range(1, count):
            parent[number[vertex]] = number[rng.integers(0, vertex)]
        parents.append(parent.tolist())
    return trees(parents)


def random_binary_trees(rng: np.random.Generator, samples: int, most_leaves: int) -> InputGraphs:
    """Every inner vertex has two children: words are merged with a neighbour until one is left."""
    graphs = []
    for _ in range(samples):
        leaves = int(rng.integers(1, most_leaves + 1))
        children: list[list[int]] = [[] for _ in range(leaves)]
        row = list(range(leaves))
        while len(row) > 1:
            place = int(rng.integers(0, len(row) - 1))
            children.append([row[place], row[place + 1]])
            row[place : place + 2] = [len(children) - 1]
        graphs.append(children)
    return graphs_of_children(graphs)


def random_acyclic(rng: np.random.Generator, samples: int, most_vertices: int) -> InputGraphs:
    """A vertex may have several parents, and be twice the child of one."""
    graphs = []
    for _ in range(samples):
        count = int(rng.integers(1, most_vertices + 1))
        number = rng.permutation(count)
        children: list[list[int]] = [[] for _ in range(count)]
        for vertex in range(1, count):
            drawn = rng.integers(0, vertex, size=int(rng.integers(0, 4)))
            children[number[vertex]] = [int(number[child]) for child in drawn]
        graphs.append(children)
    return graphs_of_children(graphs)


def random_chains(rng: np.random.Generator, samples: int, longest: int) -> InputGraphs:
    return chains(rng.integers(1, longest + 1, size=samples).tolist())
