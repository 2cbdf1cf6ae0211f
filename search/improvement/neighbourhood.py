"""Neighbours of the fastest measured strategies: one or two edits away."""

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import Population
from autosync.search.improvement.crossover_mutation import Lineage
from autosync.search.improvement.offspring import Predict, fastest, joined, judged_offspring
from autosync.search.improvement.parent_columns import pool_of
from autosync.search.space import Space

F64 = NDArray[np.float64]

DONORS_PER_CHILD = 0.25
"""A fresh strategy serves a few children, each of which takes another span of it."""


def neighbours_of(
    domain: Domain,
    space: Space,
    measured: Population,
    predict: Predict,
    count: int,
    seed: int,
    keep: int,
    threads: int = 2,
) -> tuple[Population, F64]:
    """The `keep` best predicted of `count` neighbours, and their seconds, best first.

    measured: strategies of the space, the fastest first; the fastest has the most neighbours, the
    k-th 1/k times as many.
    """
    rng = np.random.default_rng(seed)
    share = 1.0 / np.arange(1, len(measured) + 1)
    pool = pool_of(domain, space, measured, max(1, int(count * DONORS_PER_CHILD)), seed)
    lineage = Lineage(
        base=rng.choice(len(measured), count, p=share / share.sum()),
        mate=np.full(count, -1, dtype=np.int64),
        donor=pool.parents + rng.integers(pool.donors, size=count),
        edits=rng.integers(1, 3, size=count),
    )
    parts = list(judged_offspring(pool, lineage, seed, predict, keep, threads))
    return fastest(*joined(parts), keep)
