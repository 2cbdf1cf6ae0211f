"""Fusion buffers tuned on real trials, as DeAR and Horovod's autotuner do: a Gaussian process of
the speed over the buffer's size, and the size of the largest expected improvement (DeAR, IV-B)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import encode
from autosync.search.designs.design_table import fitted
from autosync.search.designs.known_designs import all_reduce_fused, dear_fused
from autosync.search.loop.predicted_candidates import predicted_candidates
from autosync.search.loop.tuning_store import Candidate, Store
from autosync.search.space import Space
from autosync.simulator.memory.memory_check import fitting_rows
from autosync.simulator.simulator_contract import Simulator
from autosync.strategy import Strategy
from autosync.units import MIB

F64 = NDArray[np.float64]

XI = 0.1
"""By which an improvement has to be exceeded to count, in standard deviations of the measured
speeds: DeAR's hyperparameter, which prefers exploration."""

DESIGNED_BYTES = (25 * MIB, 5 * MIB)
"""Sizes of hand-designed strategies, which are tried before: DeAR begins at 25 MB."""

SIZES = 32
"""Distinct sizes from 1 to 100 MiB (DeAR's range), each 16 % larger than the one before."""

FAMILIES: dict[str, Callable[[Domain, int], Strategy]] = {
    "dear": dear_fused,
    "all_reduce": all_reduce_fused,
}
"""`all_reduce` is Horovod's threshold without its cycles: these depend on costs, so the strategy of
a size would change when trials correct the costs."""

FIRST_SPREAD, LEAST_SPREAD = 0.1, 0.01
"""Standard deviation of the logarithm of a family's speeds: before two are measured, and at least,
for a quiet trial repeats within 1 %."""

LENGTHS_OCTAVES = np.geomspace(0.5, 7.0, 11)[1:-1]
"""Length scales of the Gaussian process that are compared: from half an octave, in which few
borders of messages move, to the whole range."""

NOISE = 0.01
"""Variance of a trial's noise, over that of a family's speeds."""

MOST_STDS = 2.0
"""A size is tried if it could beat everything measured within so many standard deviations."""


class FusedStrategy(NamedTuple):
    size_bytes: int
    strategy: Strategy


@dataclass(frozen=True, slots=True)
class FusionChoice:
    """A size to try. speed, std: of the logarithm of iterations a second, predicted."""

    family: str
    fused: FusedStrategy
    speed: float
    std: float


def tuned_fusion(
    domain: Domain, space: Space, simulator: Simulator, store: Store
) -> list[Candidate]:
    """The buffer to try next, if any could be the fastest of all."""
    seconds = {trial.key: trial.step_seconds for trial in store.trials()}
    choice = next_fusion(
        domain,
        space,
        {each.candidate.strategy.id: seconds.get(each.key) for each in store.proposals()},
    )
    if choice is None:
        return []
    name = f"{choice.family}_{choice.fused.size_bytes / MIB:.3g}mb"
    strategy = replace(choice.fused.strategy, name=name)
    return predicted_candidates(domain, simulator, [(f"{choice.family}_tuned", strategy)])


def next_fusion(
    domain: Domain,
    space: Space,
    step_seconds: Mapping[str, float | None],
) -> FusionChoice | None:
    """The size to try next, of the family that could be fastest; none where no family has a trial
    yet, or none could beat what is measured.

    step_seconds: of every strategy measured, by its id; None where it failed.
    """
    measured = [seconds for seconds in step_seconds.values() if seconds]
    found = []
    for family in FAMILIES:
        members = fused_strategies(domain, space, family)
        sizes, seconds, open_sizes = [], [], []
        for member in members:
            value = step_seconds.get(member.strategy.id)
            if value:
                sizes.append(member.size_bytes)
                seconds.append(value)
            elif member.strategy.id not in step_seconds:
                open_sizes.append(member)
        if not sizes or not open_sizes:
            continue
        speeds = -np.log(np.array(seconds))
        asked = np.array([member.size_bytes for member in open_sizes], dtype=np.float64)
        mean, std = speeds_over_sizes(np.array(sizes, dtype=np.float64), speeds, asked)
        pick = int(np.argmax(speed_improvement(mean, std, speeds)))
        found.append(FusionChoice(family, open_sizes[pick], float(mean[pick]), float(std[pick])))
    found = [each for each in found if each.speed + MOST_STDS * each.std > -np.log(min(measured))]
    return max(found, key=lambda each: each.speed + each.std, default=None)


def fused_strategies(domain: Domain, space: Space, family: str) -> tuple[FusedStrategy, ...]:
    """The family's different strategies that run on the domain, fit its devices' memory and lie in
    the space, by the smallest size of each; a designed size stands for its own. They do not depend
    on what messages cost, which trials correct every round."""
    stated = replace(domain, cluster=domain.cluster.without_measured_costs())
    return built_strategies(stated, space, family)


@lru_cache(maxsize=16)
def built_strategies(domain: Domain, space: Space, family: str) -> tuple[FusedStrategy, ...]:
    """`fused_strategies` of a domain without measured costs."""
    sizes = np.geomspace(MIB, 100 * MIB, SIZES).astype(np.int64).tolist()
    found: dict[str, FusedStrategy] = {}
    for size_bytes in (*DESIGNED_BYTES, *sizes):
        strategy = _fused(domain, space, family, size_bytes)
        if strategy is not None:
            found.setdefault(strategy.id, FusedStrategy(size_bytes, strategy))
    by_size = sorted(found.values(), key=lambda each: each.size_bytes)
    if not by_size:
        return ()
    fitting = fitting_rows(domain, encode([each.strategy for each in by_size], domain))
    return tuple(by_size[row] for row in fitting.tolist())


def _fused(domain: Domain, space: Space, family: str, size_bytes: int) -> Strategy | None:
    return fitted(domain, space, lambda each: FAMILIES[family](each, size_bytes))


def speeds_over_sizes(sizes: F64, speeds: F64, asked: F64) -> tuple[F64, F64]:
    """Mean and standard deviation of the speed at sizes `asked`, `(asked,)` each, given measured
    ones.

    A Gaussian process over the logarithm of the size (Rasmussen and Williams, algorithm 2.1), with
    the most likely of its length scales.
    """
    scale, at = _spread(speeds), np.log2(sizes)
    standard: F64 = (speeds - speeds.mean()) / scale
    apart, noise = at[:, None] - at, NOISE * np.eye(len(at))
    factors = [np.linalg.cholesky(_matern(apart / length) + noise) for length in LENGTHS_OCTAVES]
    likely = [_log_likelihood(factor, standard) for factor in factors]
    chosen = int(np.argmax(likely))  # of few trials the likelihood often grows up to a bound
    factor, length = factors[chosen], LENGTHS_OCTAVES[chosen]
    cross = np.linalg.solve(factor, _matern((at[:, None] - np.log2(asked)) / length))
    mean = np.linalg.solve(factor, standard) @ cross
    std = np.sqrt(1.0 + NOISE - (cross**2).sum(axis=0))
    return mean * scale + speeds.mean(), std * scale


def _matern(distance: F64) -> F64:
    """The kernel with nu 5/2, of distances over the length scale."""
    scaled = np.sqrt(5.0) * np.abs(distance)
    result: F64 = (1.0 + scaled + scaled**2 / 3.0) * np.exp(-scaled)
    return result


def _log_likelihood(factor: NDArray[np.floating], values: F64) -> float:
    """Up to a constant. factor `(n, n)`: the Cholesky factor of the covariance of values `(n,)`."""
    whitened = np.linalg.solve(factor, values)
    return float(-0.5 * whitened @ whitened - np.log(np.diag(factor)).sum())


def speed_improvement(mean: F64, std: F64, measured: F64) -> F64:
    """By how much the logarithm of each speed is expected to exceed the best measured one and
    `XI`."""
    from scipy.special import ndtr  # loads for long; a tuning alone asks for it

    above = mean - float(measured.max()) - XI * _spread(measured)
    z = above / np.maximum(std, 1e-12)
    density = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
    improvement: F64 = above * ndtr(z) + std * density
    return improvement


def _spread(speeds: F64) -> float:
    return max(float(speeds.std()), LEAST_SPREAD) if len(speeds) > 1 else FIRST_SPREAD
