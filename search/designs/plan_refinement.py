"""A strategy improved step by step in the timeline, before a trial is spent on it."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autosync.cancellation import check_cancelled
from autosync.codes import Order
from autosync.domain import Domain
from autosync.population import Population, decode, encode
from autosync.search.space import Space
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy

EVALUATIONS = 2048
"""Neighbours that the timeline plays, the bound of a refinement: seconds for the largest bundled
graph, and the same answer on any machine."""
NEIGHBOURS = 32
"""Of them, played at a time: the best one is taken if it is better."""
MOST_STALLED = 8
"""Times in a row that none of them may be better, before the search ends early."""
MOST_MOVES = 3
"""Of a neighbour: one changes little, several together leave what no single one improves."""

MOVES = 9
"""Kinds of moves, drawn alike; three are of the schedule."""
SLICES, OVERLAP, ORDER = 0, 1, 2
DIVIDES, JOINS = (3, 4), (5, 6)
"""Of the messages' borders; the others shift one."""

I64 = NDArray[np.int64]


def refined(
    strategy: Strategy, domain: Domain, space: Space, seed: int, evaluations: int = EVALUATIONS
) -> Strategy:
    """The best by the timeline that a local search reaches, of the same name; the strategy itself
    where that is none.

    Moves: two neighbouring messages become one, a message becomes two, a shard goes to the message
    beside its own, the slices' size, the order, overlap with the next forward pass, and in an
    explicit order the place of a message. Methods, cuts, owners and pinned choices stay. What
    torch itself runs, what places modules, and what swaps, is left as it is: every neighbour of the
    latter would take a schedule of its own. Raises Cancelled between neighbourhoods.
    """
    if strategy.run_by_torch or strategy.placement or strategy.swap is not None:
        return strategy
    simulator, rng = TimelineSimulator(), np.random.default_rng(seed)
    best = encode([strategy], domain)
    seconds = float(simulator.predict(domain, best)[0])
    chains = _chains(domain, space, best)
    improved, stalled = False, 0
    for _ in range(evaluations // NEIGHBOURS):
        check_cancelled()
        if stalled == MOST_STALLED:
            break
        neighbours = best.take(np.zeros(NEIGHBOURS, dtype=np.int64))
        for index in range(NEIGHBOURS):
            for _ in range(int(rng.integers(1, MOST_MOVES + 1))):
                _move(neighbours, index, chains, space, rng)
        predicted = simulator.predict(domain, neighbours)
        fastest = int(np.argmin(predicted))
        stalled += 1
        if predicted[fastest] < seconds:
            best, seconds = neighbours.take([fastest]), float(predicted[fastest])
            improved, stalled = True, 0
    if not improved:
        return strategy
    return replace(decode(best, 0, domain).canonical(), name=strategy.name)


def _chains(domain: Domain, space: Space, population: Population) -> list[I64]:
    """Rows that may share messages, each chain in gradient-ready order; pinned rows are in none."""
    pinned = {pin.variable for pin in space.pins}
    found: dict[tuple[object, ...], list[int]] = {}
    variable = population.variable.astype(np.int64)
    for row in np.argsort(domain.variables.ready[variable], kind="stable"):
        spec = domain.graph.variables[variable[row]]
        if spec.name not in pinned:
            alike = (population.method[row], population.option[row], population.server[row])
            found.setdefault((*alike, spec.dtype, spec.sparse), []).append(int(row))
    return [np.array(rows, dtype=np.int64) for rows in found.values()]


def _move(
    population: Population,
    index: int,
    chains: list[I64],
    space: Space,
    rng: np.random.Generator,
) -> None:
    """Change strategy `index` in place by one move; some moves change nothing."""
    rows = slice(int(population.first[index]), int(population.first[index + 1]))
    kind = int(rng.integers(MOVES))
    if kind == SLICES:
        population.slice_bytes[index] = rng.choice(space.slice_bytes)
    elif kind == OVERLAP and space.overlap_forward and not population.staleness[index]:
        population.overlap[index] ^= True
        population.idle_gather[index] &= population.overlap[index]
    elif kind == ORDER:
        if population.order[index] == Order.EXPLICIT:
            _place(population.position[rows], population.group[rows], rng)
        elif space.priority:
            other = Order.PRIORITY if population.order[index] == Order.FIFO else Order.FIFO
            population.order[index] = other
    elif chains:
        chain = chains[int(rng.integers(len(chains)))]
        if len(chain) > 1:
            _regroup(population.group[rows], chain, kind, rng)


def _place(position: NDArray[np.int32], group: NDArray[np.int32], rng: np.random.Generator) -> None:
    """Send one message right before another."""
    moved, before = rng.choice(np.unique(group), 2)
    key = position.astype(np.float64)
    key[group == moved] = position[group == before].min() - 0.5
    position[np.lexsort((position, key))] = np.arange(len(position))


def _regroup(group: NDArray[np.int32], chain: I64, kind: int, rng: np.random.Generator) -> None:
    """Join two neighbours, divide one, or shift a border by a shard; groups stay numbered from 0.

    A border is a place of the chain where a message ends and another begins.
    """
    ends = group[chain[:-1]] != group[chain[1:]]
    places = 1 + np.flatnonzero(~ends if kind in DIVIDES else ends)
    if not len(places):
        return
    place = int(rng.choice(places))
    left, right = int(group[chain[place - 1]]), int(group[chain[place]])
    if kind in DIVIDES:
        behind = chain[place:]
        group[behind[group[behind] == right]] = group.max() + 1
    elif kind in JOINS:
        group[group == right] = left
    elif rng.integers(2):
        group[chain[place]] = left
    else:
        group[chain[place - 1]] = right
    group[:] = np.unique(group, return_inverse=True)[1].reshape(-1)
