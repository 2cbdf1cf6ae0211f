"""Which rank sends how much to which: the shapes that messages take within a team."""

from dataclasses import dataclass, replace
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

Team = tuple[int, ...]
"""Servers: ranks, or dedicated hosts."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Traffic of one team, E edges, per byte that one replica contributes.

    source, target i64[E]: servers (ranks, then dedicated hosts). weight f64[E]: bytes.
    equation_weight: the multiple of the message that the papers' equation 3 charges.
    steps: one after another, each paying a latency. ring: every step crosses every edge. in_turn:
        each step crosses an edge of its own.
    phase_edges: how many of the edges belong to a first phase, whose end the others wait for; 0:
        all edges carry bytes at once.
    whole: a rank forwards only what it has whole. Parents come before their children.
    waits_per_byte: latencies that a message waits out besides those of its steps.
    """

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    weight: NDArray[np.float64]
    equation_weight: float
    steps: float
    ring: bool = False
    in_turn: bool = False
    phase_edges: int = 0
    whole: bool = False
    waits_per_byte: float = 0.0


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


def ring(
    team: Team, weight: float, equation: float, steps: float, waits_per_byte: float = 0.0
) -> Edges:
    """Every rank to the next one."""
    if len(team) < 2:
        return _edges([], 0.0, 0.0, 0.0)
    pairs = list(zip(team, team[1:] + team[:1], strict=True))
    around = _edges(pairs, weight, equation, steps, ring=True)
    return replace(around, waits_per_byte=waits_per_byte)


def all_to_all(team: Team, weight: float, equation: float) -> Edges:
    """Every rank to every other by itself: of two nodes of two ranks, more bytes pass between the
    nodes than in a ring, which crosses once."""
    ranks = np.array(team, dtype=np.int64)
    pairs = np.column_stack([np.repeat(ranks, len(ranks)), np.tile(ranks, len(ranks))])
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return _edges(pairs, weight, equation, 1.0)


def star(team: Team, root: int, inwards: bool) -> Edges:
    """Every rank to the root, or back; a dedicated server outside the team is the root too."""
    others = np.array(team, dtype=np.int64)
    others = others[others != root]
    ends = others, np.full(len(others), root, dtype=np.int64)
    pairs = np.column_stack(ends if inwards else ends[::-1])
    return _edges(pairs, 1.0, 1.0, 1.0)


def chain(order: Team, inwards: bool) -> Edges:
    """The whole message from rank to rank in this order, the first being the root, or back to it.
    It is pipelined: every step carries a part of the bytes."""
    ahead, behind = order[:-1], order[1:]
    pairs = list(zip(behind, ahead, strict=True) if inwards else zip(ahead, behind, strict=True))
    return replace(_edges(pairs, 1.0, 1.0, len(order) - 1.0), in_turn=True)


def ring_to_root(order: Team) -> Edges:
    """A ring reduce-scatter, whose parts the first of the order gathers."""
    size = len(order)
    if size < 2:
        return _edges([], 0.0, 0.0, 0.0)
    around = list(zip(order, order[1:] + order[:1], strict=True))
    gather = [(rank, order[0]) for rank in order[1:]]
    weights = [(size - 1) / size] * size + [1 / size] * (size - 1)
    return replace(_edges(around + gather, weights, 1.0, float(size)), phase_edges=size)


def binomial_tree(order: Team) -> Edges:
    """From the first of the order; a rank forwards only what it has whole."""
    size = len(order)
    parents = [i - (1 << (i.bit_length() - 1)) for i in range(1, size)]
    pairs = [(order[parent], order[i + 1]) for i, parent in enumerate(parents)]
    tree = _edges(pairs, 1.0, 1.0, float(ceil(log2(size))) if size > 1 else 0.0)
    return replace(tree, whole=True)


def from_root(team: Team, root: int) -> Team:
    """The team from its root on, around. A root in another team works for this one's first rank."""
    at = team.index(root) if root in team else 0
    return team[at:] + team[:at]
