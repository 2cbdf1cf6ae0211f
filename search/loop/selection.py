"""Which of the best proposals to try: fast by prediction and unlike each other."""

import numpy as np
from numpy.typing import NDArray


def select(
    scores: NDArray[np.float64],
    shares: NDArray[np.float64],
    k: int,
    alpha: float,
    tried: NDArray[np.float64] | None = None,
) -> NDArray[np.int64]:
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


def normalised(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores as 0 at the best and 1 at the median (at the worst, where those are equal)."""
    least = scores.min(initial=np.inf)
    above = scores - least if len(scores) else scores
    scale = np.median(above) if len(above) else 1.0
    if not scale > 0:
        scale = above.max(initial=0.0) or 1.0
    result: NDArray[np.float64] = above / scale
    return result


def similarity(shares: NDArray[np.float64], one: NDArray[np.float64]) -> NDArray[np.float64]:
    """A `(strategies,)` array: what each has in common with one, `(features,)`, 0 to 1, the
    intersection of their histograms (Swain and Ballard 1991)."""
    common: NDArray[np.float64] = np.minimum(shares, one).sum(axis=1)
    return common
