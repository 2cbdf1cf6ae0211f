"""A genetic algorithm over populations (thesis, 8.3.2 names it; it prints none of its rules)."""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import Population
from autosync.search.improvement.crossover_mutation import Lineage
from autosync.search.improvement.offspring import Predict, fastest, joined, judged_offspring
from autosync.search.improvement.parent_columns import ParentPool, pool_of
from autosync.search.space import Space

F64 = NDArray[np.float64]

SURVIVORS = 256
"""Parents of a generation: the fastest of the one before and of its children."""
CHILDREN = 1024
"""Of a generation."""
DONORS = 256
"""Freshly drawn strategies of a generation, which mutations take from."""
CROSSED = 0.75
"""Share of the children that have a mate."""


def evolve(
    domain: Domain,
    space: Space,
    first: Population,
    predict: Predict,
    count: int,
    seed: int,
    threads: int = 2,
) -> tuple[Population, F64]:
    """The last generation after `count` children, best first, and its predicted seconds.

    first: the first generation, strategies of the space.
    """
    population, seconds = fastest(first, predict(first), SURVIVORS)
    for number, start in enumerate(range(0, count, CHILDREN)):
        rng = np.random.default_rng((seed, number))
        born = int(rng.integers(2**63))
        pool = pool_of(domain, space, population, DONORS, born)
        lineage = drawn_lineage(pool, min(CHILDREN, count - start), rng)
        children = judged_offspring(pool, lineage, born, predict, SURVIVORS, threads)
        population, seconds = fastest(*joined([(population, seconds), *children]), SURVIVORS)
    return population, seconds


def drawn_lineage(pool: ParentPool, count: int, rng: Generator) -> Lineage:
    """Base and mate are the better of two drawn parents each (binary tournament); parents stand
    best first."""
    base, mate = rng.integers(pool.parents, size=(2, 2, count)).min(axis=1)
    return Lineage(
        base=base,
        mate=np.where(rng.random(count) < CROSSED, mate, -1),
        donor=pool.parents + rng.integers(pool.donors, size=count),
        edits=rng.integers(1, 4, size=count),
    )
