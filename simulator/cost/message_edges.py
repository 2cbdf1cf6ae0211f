"""Which rank sends how much to which, for every operation: the traffic of a message."""

from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from autosync.cluster import Backend
from autosync.codes import Op


@dataclass(frozen=True, slots=True)
class Edges:
    """Traffic of one team, E edges, per byte that one replica contributes.

    source, target i64[E]: servers (ranks, then dedicated hosts). weight f64[E]: bytes.
    equation_weight: the multiple of the message that the papers' equation 3 charges.
    steps: one after another, each paying a latency. ring: every step crosses every edge.
    """

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    weight: NDArray[np.float64]
    equation_weight: float
    steps: float
    ring: bool = False


def edges_of(operation: Op, team: tuple[int, ...], root: int, backend: Backend) -> Edges:
    """The traffic of `operation` within a team.

    A server may stand outside the team (a dedicated host); a reduction or broadcast whose root
    is in another team works for its own first rank.

    gloo: all-reduce is a ring, reduce is a ring reduce-scatter gathered at the root, broadcast a
    binomial tree (its sources); the runtime's reduce-scatter is an all-to-all, because gloo's own
    moves an all-reduce's bytes (measured), and its all-gather sends from every rank to every other.
    So do messages of touched rows and of factors on any backend. NCCL: rings, and pipelined chains
    for reduce and broadcast.

    A rank of a binomial tree forwards only what it has whole: a broadcast alone to 4 ranks was
    measured to take 2.96 times its bytes on one link, where its root sends them twice. Fitted
    costs hold the rest.
    """
    size = len(team)
    chief = root if root in team else team[0]
    part = (size - 1) / size
    match operation:
        case Op.ALL_REDUCE:
            return _ring(team, 2 * part, 2 * part, 2 * (size - 1))
        case Op.REDUCE_SCATTER | Op.ALL_GATHER if backend == "gloo":
            return _all_to_all(team, 1 / size, part)
        case Op.REDUCE_SCATTER | Op.ALL_GATHER:
            return _ring(team, part, part, size - 1)
        case Op.SPARSE_ALL_GATHER | Op.FACTOR_ALL_GATHER:
            return _all_to_all(team, 1.0, size - 1.0)
        case Op.PUSH | Op.SPARSE_PUSH:
            return _star(team, root, inwards=True)
        case Op.PULL | Op.SPARSE_PULL:
            return _star(team, root, inwards=False)
        case Op.REDUCE:
            return _reduce(team, chief, backend)
        case Op.BROADCAST:
            return _broadcast(team, chief, backend)


def _edges(
    pairs: list[tuple[int, int]] | NDArray[np.int64],
    weight: float | list[float],
    equation: float,
    steps: float,
    ring: bool = False,
) -> Edges:
    ends = np.array(pairs, dtype=np.int64).reshape(len(pairs), 2)
    weights = np.broadcast_to(np.asarray(weight, dtype=np.float64), (len(pairs),)).copy()
    return Edges(ends[:, 0], ends[:, 1], weights, equation, steps, ring)


def _ring(team: tuple[int, ...], weight: float, equation: float, steps: float) -> Edges:
    if len(team) < 2:
        return _edges([], 0.0, 0.0, 0.0)
    pairs = list(zip(team, team[1:] + team[:1], strict=True))
    return _edges(pairs, weight, equation, steps, ring=True)


def _all_to_all(team: tuple[int, ...], weight: float, equation: float) -> Edges:
    """Every rank to every other by itself: of two nodes of two ranks, more bytes pass between the
    nodes than in a ring, which crosses once."""
    ranks = np.array(team, dtype=np.int64)
    pairs = np.column_stack([np.repeat(ranks, len(ranks)), np.tile(ranks, len(ranks))])
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return _edges(pairs, weight, equation, 1.0)


def _star(team: tuple[int, ...], root: int, inwards: bool) -> Edges:
    """Every rank to the root, or back; a dedicated server outside the team is the root too."""
    others = np.array(team, dtype=np.int64)
    others = others[others != root]
    ends = others, np.full(len(others), root, dtype=np.int64)
    pairs = np.column_stack(ends if inwards else ends[::-1])
    return _edges(pairs, 1.0, 1.0, 1.0)


def _from_root(team: tuple[int, ...], root: int) -> tuple[int, ...]:
    at = team.index(root)
    return team[at:] + team[:at]


def _reduce(team: tuple[int, ...], root: int, backend: Backend) -> Edges:
    order = _from_root(team, root)
    size = len(order)
    if backend == "nccl":
        return _edges(list(zip(order[1:], order[:-1], strict=True)), 1.0, 1.0, size - 1.0)
    if size < 2:
        return _edges([], 0.0, 0.0, 0.0)
    ring = list(zip(order, order[1:] + order[:1], strict=True))
    gather = [(rank, root) for rank in order[1:]]
    weights = [(size - 1) / size] * size + [1 / size] * (size - 1)
    return _edges(ring + gather, weights, 1.0, float(size))


def _broadcast(team: tuple[int, ...], root: int, backend: Backend) -> Edges:
    order = _from_root(team, root)
    size = len(order)
    if backend == "nccl":
        return _edges(list(pairwise(order)), 1.0, 1.0, size - 1.0)
    parents = [i - (1 << (i.bit_length() - 1)) for i in range(1, size)]
    pairs = [(order[parent], order[i + 1]) for i, parent in enumerate(parents)]
    return _edges(pairs, 1.0, 1.0, float(ceil(log2(size))) if size > 1 else 0.0)
