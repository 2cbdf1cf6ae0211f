"""Which proposals to try: fast by prediction, of new messages, and unlike each other."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.plan.plan_table import PlanTable
from autosync.population import Population
from autosync.simulator.message_digests import digests_of
from autosync.simulator.numba_compiler import compile_plans_fast

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

STRETCHES = 8
"""Into which readiness, order and the forward pass are divided, to say what is alike."""


def select(
    scores: F64,
    shares: F64,
    k: int,
    alpha: float,
    tried: F64 | None = None,
) -> I64:
    """Indices of `k` candidates in the order they were picked (AutoSync, equation 11, greedy).

    scores: `(strategies,)`, lower is better. shares: `(strategies, features)`, of what kinds of
    messages each consists (`message_shares`). alpha: weight of similarity. tried: `(n, features)`,
    the same of what was tried before, which counts as picked.
    Both terms are normalised: a score counts 0 at the best and 1 at the median candidate,
    similarity is the mean share of messages in common with those picked before, so alpha means the
    same for any simulator, model and k. Ties go to the lower index.
    """
    cost = normalised(scores)
    alike = np.zeros(len(scores), dtype=np.float64)
    before = [] if tried is None else list(tried)
    for known in before:
        alike += similarity(shares, known)
    untried = np.ones(len(scores), dtype=np.bool_)
    picks: list[int] = []
    while len(picks) < k and untried.any():
        total = cost + alpha * alike / max(len(before) + len(picks), 1)
        best = int(np.argmin(np.where(untried, total, np.inf)))
        picks.append(best)
        untried[best] = False
        alike += similarity(shares, shares[best])
    return np.array(picks, dtype=np.int64)


def normalised(scores: F64) -> F64:
    """Scores as 0 at the best and 1 at the median (at the worst, where those are equal)."""
    least = scores.min(initial=np.inf)
    above = scores - least if len(scores) else scores
    scale = np.median(above) if len(above) else 1.0
    if not scale > 0:
        scale = above.max(initial=0.0) or 1.0
    result: F64 = above / scale
    return result


def similarity(shares: F64, one: F64) -> F64:
    """A `(strategies,)` array: what each has in common with one, `(features,)`, 0 to 1, the
    intersection of their histograms (Swain and Ballard 1991)."""
    common: F64 = np.minimum(shares, one).sum(axis=1)
    return common


def distinct_rows(domain: Domain, population: Population, known: Collection[bytes] = ()) -> I64:
    """Indices of the strategies whose messages are neither known nor those of an earlier one.

    known: digests, as of `digests_of`.
    """
    taken = set(known)
    rows = []
    for index, digest in enumerate(digests_of(domain, population)):
        if digest not in taken:
            taken.add(digest)
            rows.append(index)
    return np.array(rows, dtype=np.int64)


def message_shares(domain: Domain, population: Population) -> F64:
    """A `(strategies, features)` array: of what kinds of messages each strategy consists.

    A row sums to 1. Messages are counted by operation and the ranks of it alone; together with the
    octave of their bytes; with their gradients' readiness; with the forward operation that waits
    for them; and with their place in the order of issue. Each of the five weighs as much, and in
    each a message weighs half by its share of the bytes, half as one of the messages.
    """
    plans = compile_plans_fast(population, domain)
    counts = np.diff(plans.first)
    owner = np.repeat(np.arange(len(plans)), counts)
    place = np.arange(plans.messages) - plans.first[:-1][owner]
    sums = np.bincount(owner, weights=plans.wire_bytes, minlength=len(plans))
    weight = 0.5 * plans.wire_bytes / sums[owner] + 0.5 / counts[owner]
    kind = _message_kinds(plans)
    views = (
        np.zeros(plans.messages, dtype=np.int64),
        np.log2(np.maximum(plans.wire_bytes, 1)).astype(np.int64),
        _stretches(plans.ready, len(domain.graph.variables)),
        _stretches(plans.gate, len(domain.graph.operations)),
        STRETCHES * place // counts[owner],
    )
    return np.concatenate([_histogram(owner, kind, view, weight) for view in views], axis=1) / len(
        views
    )


def _message_kinds(plans: PlanTable) -> I64:
    """`(messages,)`: operation, root and teams as one number."""
    columns = (plans.operation, plans.root, plans.ranks)
    operation, root, ranks = (column.astype(np.int64) for column in columns)
    roots, teams = int(root.max(initial=0)) + 2, int(ranks.max(initial=0)) + 1
    key = (operation * roots + root + 1) * teams + ranks
    kinds: I64 = np.unique(key, return_inverse=True)[1].astype(np.int64)
    return kinds


def _stretches(position: NDArray[np.int32], length: int) -> I64:
    """Which of the `STRETCHES` of 0 to `length` a position lies in; -1 without one."""
    stretch: I64 = np.where(position < 0, -1, STRETCHES * position.astype(np.int64) // length)
    return stretch


def _histogram(owner: I64, kind: I64, view: I64, weight: F64) -> F64:
    """`(strategies, cells)`: the weight of each strategy's messages in every cell that occurs: of a
    kind and, within it, a view of -1 or more."""
    views = int(view.max(initial=0)) + 2
    cell = kind * views + view + 1
    occurs = np.bincount(cell) > 0
    place = np.cumsum(occurs) - 1
    n, width = int(owner[-1]) + 1 if len(owner) else 0, int(occurs.sum())
    sums = np.bincount(owner * width + place[cell], weights=weight, minlength=n * width)
    return sums.reshape(n, width).astype(np.float64)
