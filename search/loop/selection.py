"""Which of the best proposals to try: fast by prediction and unlike each other."""

import numpy as np
from numpy.typing import NDArray

from autosync.population import Population


def select(
    scores: NDArray[np.float64],
    population: Population,
    k: int,
    alpha: float,
) -> NDArray[np.int64]:
    """Indices of `k` candidates in the order they were picked (AutoSync, equation 11, greedy).

    scores: `(strategies,)`, lower is better. alpha: weight of similarity.
    Both terms are normalised: a score counts 0 at the best and 1 at the median candidate,
    similarity is the mean share of equal choices with those picked before, so alpha means the same
    for any simulator, model and k. Ties go to the lower index.
    """
    choices = choice_features(population)
    cost = normalised(scores)
    alike = np.zeros(len(population), dtype=np.float64)
    untried = np.ones(len(population), dtype=np.bool_)
    picks: list[int] = []
    while len(picks) < k and untried.any():
        total = cost + alpha * alike / max(len(picks), 1)
        best = int(np.argmin(np.where(untried, total, np.inf)))
        picks.append(best)
        untried[best] = False
        alike += similarity(choices, best)
    return np.array(picks, dtype=np.int64)


def normalised(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores as 0 at the best and 1 at the median (at the worst, where those are equal)."""
    least = scores.min(initial=np.inf)
    above = scores - least if len(scores) else scores
    scale = np.median(above) if len(above) else 1.0
    if not scale > 0:
        scale = above.max(initial=0.0) or 1.0
    result: NDArray[np.float64] = above / scale
    return result


def similarity(choices: NDArray[np.int32], index: int) -> NDArray[np.float64]:
    """A `(strategies,)` array: the share of choices that each has in common with one of them."""
    equal: NDArray[np.float64] = (choices == choices[index]).mean(axis=1)
    return equal


def choice_features(population: Population) -> NDArray[np.int32]:
    """A `(strategies, 9 V)` array: what affects each variable's synchronization (supplement, 7).

    Partition axis and parts, method, option and owner of its first shard, whether that starts a
    new group, and the strategy's order, slices and overlap. Group numbers are names, so only
    where groups begin counts.
    """
    n, variables = population.axis.shape
    starts = np.cumsum(population.parts, axis=1, dtype=np.int64) - population.parts
    rows = population.first[:-1, None] + starts
    before = np.maximum(rows - 1, 0)
    joined = (population.group[rows] == population.group[before]) & (starts > 0)
    slices = np.unique(population.slice_bytes, return_inverse=True)[1]
    columns = [
        population.axis,
        population.parts,
        population.method[rows],
        population.option[rows],
        population.server[rows],
        joined,
        *(
            np.broadcast_to(head.reshape(n, 1), (n, variables))
            for head in (population.order, slices, population.overlap)
        ),
    ]
    return np.concatenate([column.astype(np.int32) for column in columns], axis=1)
