"""Searches by small edits: neighbours of measured strategies, and local searches from one of them.

Both keep the fastest and edit these again, the mutation and selection of a genetic algorithm
(thesis, 8.3.2, names one and prints none of its rules).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from autosync.cancellation import in_order
from autosync.domain import Domain
from autosync.population import Population, concatenate, decode, encode
from autosync.search.edits.small_edits import (
    ALL_KINDS,
    MESSAGE_KINDS,
    Parents,
    make_edited,
    parents_of,
)
from autosync.search.extension_proposals import is_edited
from autosync.search.space import Space
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Predict = Callable[[Population], F64]
"""Seconds of each strategy; lower is better."""

CHUNK = 512
"""Children made and judged at a time, as many as the ranking of samples takes."""
GENERATION = 256
"""Children of a step of a local search."""
KEPT = 16
"""The fastest so far, which the next step begins from: several, for one edit alone often gains
nothing."""
REFINEMENT = 2048
"""Strategies that the timeline plays in a refinement: seconds for the largest bundled graph, and
the same answer on any machine."""
REFINEMENT_GENERATION = 64
"""Of these at a time: schedules and borders have fewer values than methods and owners."""


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
    """The `keep` best predicted of `count` neighbours, one or two edits away, and their seconds,
    best first.

    measured: the fastest first; the fastest has the most neighbours, the k-th 1/k times as many.
    """
    rng = np.random.default_rng(seed)
    share = 1.0 / np.arange(1, len(measured) + 1)
    base = rng.choice(len(measured), count, p=share / share.sum())
    edits = rng.integers(1, 3, size=count)
    parents = parents_of(domain, space, measured)
    judged = _judged(parents, base, edits, ALL_KINDS, seed, predict, keep, threads)
    return fastest(*_joined(list(judged)), keep)


def searched_from(
    domain: Domain,
    space: Space,
    first: Population,
    predict: Predict,
    count: int,
    seed: int,
    keep: int,
    threads: int = 2,
    kinds: I64 = ALL_KINDS,
    generation: int = GENERATION,
) -> tuple[Population, F64]:
    """The `keep` best predicted of `count` strategies that a local search looks at, by small edits
    of the fastest so far, and their seconds, best first.

    first: what it begins with; these are among what is found.
    """
    rng = np.random.default_rng(seed)
    found = fastest(first, predict(first), keep)
    generation = max(1, min(generation, count))
    for number in range(max(1, count // generation) if len(found[0]) else 0):
        parents = parents_of(domain, space, found[0].take(np.arange(min(KEPT, len(found[0])))))
        base = rng.integers(len(parents), size=generation)
        edits = rng.integers(1, 4, size=generation)
        born = seed + (number << 32)
        children = _judged(parents, base, edits, kinds, born, predict, keep, threads)
        found = fastest(*_joined([found, *children]), keep)
    return found


def refined(
    strategy: Strategy, domain: Domain, space: Space, seed: int, count: int = REFINEMENT
) -> Strategy:
    """The best by the timeline that a local search reaches, of the same name; the strategy itself
    where that is none.

    Edits of messages' borders and of the schedule: methods, cuts, owners and pinned choices stay.
    What torch itself runs is left as it is, and what carries extensions of which no others are
    made (`Proposer.is_edited`). Raises Cancelled between generations.
    """
    if strategy.run_by_torch or not is_edited(strategy.extensions):
        return strategy
    predict = partial(TimelineSimulator().predict, domain)
    given = encode([strategy], domain)
    found, seconds = searched_from(
        domain,
        space,
        given,
        predict,
        count,
        seed,
        KEPT,
        kinds=MESSAGE_KINDS,
        generation=REFINEMENT_GENERATION,
    )
    if not len(seconds) or seconds[0] >= predict(given)[0]:
        return strategy
    return replace(decode(found, 0, domain).canonical(), name=strategy.name)


def fastest(population: Population, seconds: F64, keep: int) -> tuple[Population, F64]:
    """The `keep` fastest, fastest first, of equal seconds the first one: their messages are mostly
    equal, too. What cannot run (infinite or NaN) is left out."""
    order = np.argsort(seconds, kind="stable")
    order = order[np.isfinite(seconds[order])]
    new = np.concatenate(([True], np.diff(seconds[order]) > 0))[: len(order)]
    best = order[new][:keep]
    return population.take(best), seconds[best]


def _judged(
    parents: Parents,
    base: I64,
    edits: I64,
    kinds: I64,
    seed: int,
    predict: Predict,
    keep: int,
    threads: int,
) -> Iterator[tuple[Population, F64]]:
    """The best `keep` of each chunk of the children with their seconds, chunk by chunk; they do not
    depend on `threads`. Raises Cancelled between chunks."""

    def chunk(start: int) -> tuple[Population, F64]:
        part = slice(start, start + CHUNK)
        children = make_edited(parents, base[part], edits[part], start, seed, kinds)
        return fastest(children, predict(children), keep)

    yield from in_order(threads, chunk, range(0, len(base), CHUNK))


def _joined(parts: list[tuple[Population, F64]]) -> tuple[Population, F64]:
    return concatenate([each for each, _ in parts]), np.concatenate([s for _, s in parts])
