"""Which strategies a simulator may learn from, and which judge it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]

SHARES = (0.70, 0.15, 0.15)
"""Train, validation, test (supplement, section 10)."""


@dataclass(frozen=True, slots=True)
class StrategySplit:
    """Indices of strategies. Validation chooses epochs and settings; test only judges."""

    train: I64
    validation: I64
    test: I64

    @property
    def known(self) -> I64:
        """Train and validation. A learner divides these itself, in the same shares."""
        return np.concatenate([self.train, self.validation])


def split_strategies(count: int, seed: int) -> StrategySplit:
    """70/15/15 of `count` strategies in the random order of the seed."""
    order = np.random.default_rng(seed).permutation(count)
    test, validation = round(count * SHARES[2]), round(count * SHARES[1])
    return StrategySplit(order[test + validation :], order[test : test + validation], order[:test])
