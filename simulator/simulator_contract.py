"""The contract of a simulator: predict seconds an iteration without running."""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import Population


class Simulator(Protocol):
    """name: goes on every stored prediction."""

    name: str

    def predict(self, domain: Domain, population: Population) -> NDArray[np.float64]:
        """A `(strategies,)` array; lower is better. Seconds where the simulator knows seconds."""
        ...


@runtime_checkable
class Learner(Simulator, Protocol):
    """A simulator that improves by trials, and says how sure it is."""

    def predict_with_std(
        self, domain: Domain, population: Population
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """`predict`, and the standard deviation of the logarithm of its seconds."""
        ...

    def refit(
        self, domain: Domain, population: Population, step_seconds: NDArray[np.float64]
    ) -> None:
        """Learn from measured strategies: `step_seconds` is `(strategies,)`, no NaN."""
        ...
