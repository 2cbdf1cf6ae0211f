"""Neighbours of the fastest measured strategies, one or two edits away, and what a local search
from one of them comes to."""

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import Population
from autosync.search.improvement.crossover_mutation import Lineage
from autosync.search.improvement.offspring import (
    Predict,
    fastest,
    joined,
    judged_edited,
    judged_offspring,
)
from autosync.search.improvement.parent_columns import pool_of
from autosync.search.space import Space

F64 = NDArray[np.float64]

SMALL_SHARE = 0.75
"""Of the neighbours, those by small edits; a larger one takes a span of a fresh strategy, whose
owners are drawn by bandwidth."""
GENERATION = 256
"""Children of a step of a local search."""
KEPT = 16
"""The fastest so far, which the next step begins from: several, for one edit alone often gains
nothing."""

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
    small = round(count * SMALL_SHARE)
    large = count - small
    pool = pool_of(domain, space, measured, max(1, int(large * DONORS_PER_CHILD)), seed)
    base = rng.choice(len(measured), count, p=share / share.sum())
    edits = rng.integers(1, 3, size=count)
    lineage = Lineage(
        base=base[small:],
        mate=np.full(large, -1, dtype=np.int64),
        donor=pool.parents + rng.integers(pool.donors, size=large),
        edits=edits[small:],
    )
    parts = [
        *judged_edited(pool, base[:small], edits[:small], seed, predict, keep, threads),
        *judged_offspring(pool, lineage, seed, predict, keep, threads),
    ]
    return fastest(*joined(parts), keep)


def searched_from(
    domain: Domain,
    space: Space,
    parent: Population,
    predict: Predict,
    count: int,
    seed: int,
    keep: int,
    threads: int = 2,
) -> tuple[Population, F64]:
    """The `keep` best predicted of `count` strategies that a local search from one strategy looks
    at, by small edits of the fastest so far, and their seconds, best first.

    parent: that one strategy; it is among what is found.
    """
    rng = np.random.default_rng(seed)
    found = parent, predict(parent)
    for number in range(max(1, count // GENERATION)):
        begin = found[0].take(np.arange(min(KEPT, len(found[0]))))
        pool = pool_of(domain, space, begin, 1, seed)
        base = rng.integers(len(begin), size=GENERATION)
        edits = rng.integers(1, 4, size=GENERATION)
        born = seed + (number << 32)
        children = judged_edited(pool, base, edits, born, predict, keep, threads)
        found = fastest(*joined([found, *children]), keep)
    return found
