"""Parts of the trials, each left out once."""

import numpy as np
from numpy.typing import NDArray

FOLDS = 3
"""Parts, each left out once to judge what was fitted to the others."""


def fold_of(n: int, folds: int, seed: int) -> NDArray[np.int64]:
    """Which of `folds` equal parts each of `n` trials belongs to, i64[n], at random."""
    result: NDArray[np.int64] = np.random.default_rng(seed).permutation(n) % folds
    return result
