"""Which neighbours in gradient-ready order travel in one message: PACE's max-min partitions."""

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


def max_min_partitions(size_bytes: NDArray[np.float64]) -> list[I64]:
    """For R of 1 to N, the chain of N tensors in R parts whose smallest part is largest.

    Each as the places at which its parts begin. PACE, algorithm 1: best(i, R), of the tensors from
    i on, is the largest min(bytes of a prefix, best(behind the prefix, R - 1)), of equal ones the
    shortest prefix. O(N^3) in all, a row of N^2 at a time.
    """
    count = len(size_bytes)
    total = np.concatenate(([0.0], np.cumsum(size_bytes)))
    prefix = np.where(np.tri(count, k=-1), -np.inf, total[None, 1:] - total[:-1, None])
    best = total[-1] - total[:-1]
    cuts: list[I64] = []
    partitions = [np.zeros(1, dtype=np.int64)]
    for _ in range(1, count):
        behind = np.append(best[1:], -np.inf)
        smallest = np.minimum(prefix, behind[None, :])
        cuts.append(smallest.argmax(axis=1) + 1)
        best = smallest.max(axis=1)
        begins = [0]
        for cut in reversed(cuts):
            begins.append(int(cut[begins[-1]]))
        partitions.append(np.array(begins, dtype=np.int64))
    return partitions
