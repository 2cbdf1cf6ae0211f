"""What a strategy with placed modules is worth: predicted seconds, and whether it fits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from autosync.cancellation import check_cancelled
from autosync.domain import Domain
from autosync.population import encode
from autosync.simulator.memory.peak_memory import DomainMemory, device_memory_bytes, memory_of
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.simulator_contract import Simulator
from autosync.strategy import Strategy

OUT_OF_MEMORY = 10.0
"""By which the reward of what does not fit is multiplied (HeteroG, section 4.1.3)."""

LEAST_GAIN = 0.005
"""Of an iteration: less is within what the timeline is off by."""

Stop = Callable[[], bool]
"""Whether proposers end with what they have found; asked only where there is more to look at."""


def no_stop() -> bool:
    """Of proposers that their budget alone ends."""
    return False


@dataclass(frozen=True, slots=True)
class JudgedPlacement:
    """excess: what ranks need beyond their devices' memory, over all memory; 0 where it fits.
    free_bytes: of each rank's device; negative where it needs more, infinite where it has no limit.
    """

    strategy: Strategy
    step_seconds: float
    excess: float
    free_bytes: tuple[float, ...]

    @property
    def fits(self) -> bool:
        return self.excess == 0.0

    @property
    def rank(self) -> tuple[float, float]:
        """To compare: what fits before what does not, then the faster; of what does not fit, first
        what comes nearer."""
        return self.excess, self.step_seconds

    def improves(self, other: "JudgedPlacement") -> bool:
        """Whether it fits better, or both fit and it is faster by what counts."""
        if not (self.fits and other.fits):
            return self.rank < other.rank
        return self.step_seconds < other.step_seconds * (1 - LEAST_GAIN)

    def reward(self, unit_seconds: float) -> float:
        """HeteroG's: the negative root of seconds an iteration. Out of memory it is ten times as
        low, and lower the more is missing, so that of two placements that do not fit the nearer one
        is liked better, however slow. unit_seconds: in which seconds count, so that models of all
        sizes reward alike."""
        if self.fits:
            return -sqrt(self.step_seconds / unit_seconds)
        return -OUT_OF_MEMORY * (1 + self.excess)


@dataclass(slots=True)
class PlacementJudge:
    """evaluations: strategies judged so far. stop: ends whoever proposes, before its budget."""

    domain: Domain
    simulator: Simulator
    stop: Stop = no_stop
    evaluations: int = 0
    _memory: DomainMemory = field(init=False)
    _devices: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self._memory = memory_of(self.domain)
        self._devices = device_memory_bytes(self.domain)

    def judge(self, strategies: Sequence[Strategy]) -> list[JudgedPlacement]:
        """Raises Cancelled."""
        check_cancelled()
        population = encode(list(strategies), self.domain)
        self.evaluations += len(population)
        seconds = self.simulator.predict(self.domain, population)
        limited = np.isfinite(self._devices)
        free, excess = np.tile(self._devices, (len(population), 1)), np.zeros(len(population))
        if limited.any():
            plans = compile_plans_fast(population, self.domain)
            free -= self._memory.peak_bytes(plans, population)
            beyond = np.maximum(-free, 0.0)[:, limited]
            excess = beyond.sum(axis=1) / self._devices[limited].sum()
        return [
            JudgedPlacement(strategy, float(second), float(share), tuple(left))
            for strategy, second, share, left in zip(
                strategies, seconds, excess, free.tolist(), strict=True
            )
        ]
