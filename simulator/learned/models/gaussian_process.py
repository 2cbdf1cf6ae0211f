"""A Gaussian process on the log residual of a simulator: what similar strategies were off by.

Strategies whose summaries are near each other err alike, so a few dozen trials tell much about
hundreds, and far from all trials the simulator beneath is left as it is. The kernel is
exp(-distance^2 / 2 length^2) + linear * inner product, both per column of the standardised
summary, times the variance of the residuals. Its settings are those with the least leave-one-out
error, which is exact.

What the trials of another domain were off by is partly that domain's own, and many of them do not
average that away: corrections of two domains at the same strategy correlate by less than 1 (the
intrinsic model of coregionalization; Alvarez, Rosasco and Lawrence 2012, section 4.2).
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.cancellation import check_cancelled
from autosync.domain import Domain
from autosync.simulator.learned.features.feature_names import SUMMARY_COLUMNS
from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.learned.models.learned_model import FittedScores, LabelledTrials
from autosync.simulator.learned.models.left_out_trials import RobustLoss, is_significant
from autosync.simulator.learned.models.model_arrays import (
    ArrayForm,
    Arrays,
    below,
    finite,
    forms_if_given,
    nested,
    not_negative,
    positive,
)
from autosync.simulator.learned.models.recipe import Recipe
from autosync.simulator.learned.models.source_trials import (
    LARGEST,
    KnownTrials,
    RelatedTrials,
    SourceTrials,
    kept_trials,
)

F64 = NDArray[np.float64]

LENGTHS = (0.5, 1.0, 2.0)
LINEAR = (0.0, 0.1)
NOISES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Of the fastest strategies, over the variance of the residuals; slower ones have more."""
FEWEST_FOR_PROCESS = 16
"""Fewer do not tell 36 settings from chance."""
BOUND = 4.0
"""Standard deviations to which a column's value is clipped."""
BLOCK = 64
"""Rows of a triangle that are solved at once."""


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """length: of the kernel, in root mean squares of standardised columns. linear: share of the
    linear kernel. noise: variance of the fastest strategies' noise over that of the residuals."""

    length: float
    linear: float
    noise: float


SETTINGS = tuple(KernelSettings(*each) for each in product(LENGTHS, LINEAR, NOISES))
POOLED = tuple(each for each in SETTINGS if each.length >= 1.0 and each.noise >= 0.1)
"""For several domains, whose strategies are less alike."""


@dataclass(frozen=True, slots=True)
class FittedKernel:
    """What a process takes from its trials before it is solved, over F columns.

    center, scale f64[F]: scale is infinite where a column did not vary. variance: of the
    residuals.
    """

    center: F64
    scale: F64
    setting: KernelSettings
    variance: float

    def standard(self, table: NDArray[np.floating[Any]]) -> F64:
        """Standardised columns, `(n, F)`."""
        result: F64 = np.clip((table - self.center) / self.scale, -BOUND, BOUND)
        return result

    def between(self, left: F64, right: F64) -> F64:
        """Of standardised strategies, `(n, F)` and `(m, F)` to `(n, m)`."""
        return _kernel(left, right, self.setting)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """By the names that checkpoints hold."""
        return {
            "center": self.center,
            "scale": self.scale,
            "setting": np.array(astuple(self.setting)),
            "variance": np.array([self.variance]),
        }

    @staticmethod
    def array_forms(columns: int) -> dict[str, ArrayForm]:
        return {
            "center": ArrayForm((columns,)),
            "scale": ArrayForm((columns,), rule=positive),
            "setting": ArrayForm((3,), rule=positive_length_and_noise),
            "variance": ArrayForm((1,), rule=not_negative),
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> "FittedKernel":
        return cls(
            arrays["center"],
            arrays["scale"],
            KernelSettings(*(float(value) for value in arrays["setting"])),
            float(arrays["variance"][0]),
        )


def positive_length_and_noise(array: NDArray[Any]) -> str:
    """The rule of stored `KernelSettings`."""
    sound = array[0] > 0 and array[1] >= 0 and array[2] > 0
    return finite(array) or ("" if sound else "holds no kernel")


@dataclass(frozen=True, slots=True)
class GaussianProcess:
    """A process solved for T trials.

    known f64[T, F]: standardised. to_own f64[T]: how the trial's domain correlates with the one at
    hand. factor f64[T, T]: lower, of Cholesky, of kernel and noise. coefficients f64[T]: what the
    kernel to each trial counts in a correction.
    """

    kernel: FittedKernel
    known: F64
    to_own: F64
    factor: F64
    coefficients: F64

    def correction(self, table: F64) -> F64:
        """Log seconds, `(n, F)` to `(n,)`."""
        return self._bounded(self._likeness(self.kernel.standard(table)))

    def correction_with_std(self, table: F64) -> tuple[F64, F64]:
        """Log seconds, and the standard deviation that the trials leave open, `(n, F)` to `(n,)`
        each."""
        standard = self.kernel.standard(table)
        likeness = self._likeness(standard)
        own = 1.0 + self.kernel.setting.linear * (standard**2).mean(axis=1)
        left: F64 = own - (solved_lower(self.factor, likeness) ** 2).sum(axis=0)
        std = np.sqrt(self.kernel.variance * np.maximum(left, 0.0))
        return self._bounded(likeness), std

    def left_out(self, residual: F64) -> F64:
        """Each trial's correction by the process of the others (exact), `(T,)`, bounded."""
        inverse = solved_lower(self.factor, np.eye(len(self.factor)))
        misses = self.coefficients / (inverse**2).sum(axis=0)
        result: F64 = np.clip(residual - misses, -LARGEST, LARGEST)
        return result

    def _likeness(self, standard: F64) -> F64:
        """The kernel of the trials and standardised strategies of the domain at hand, `(T, n)`."""
        return self.kernel.between(self.known, standard) * self.to_own[:, None]

    def _bounded(self, likeness: F64) -> F64:
        result: F64 = np.clip(self.coefficients @ likeness, -LARGEST, LARGEST)
        return result


def solved(kernel: FittedKernel, trials: RelatedTrials) -> GaussianProcess:
    """For the domain at hand. The slower a strategy, the more noise its trial is taken to have."""
    known = kernel.standard(trials.summary)
    noisy = kernel.between(known, known) * trials.between
    noisy += np.diag(kernel.setting.noise / trials.speed)
    factor = np.asarray(np.linalg.cholesky(noisy), dtype=np.float64)
    coefficients = solved_upper(factor, solved_lower(factor, trials.residual))
    return GaussianProcess(kernel, known, trials.to_own, factor, coefficients)


def solved_lower(factor: F64, right: F64) -> F64:
    """X of `factor @ X = right`, a lower triangle `(T, T)` and `(T,)` or `(T, m)`: by blocks, so
    that almost all of it are products of matrices, without SciPy, which loads for long."""
    found = right.copy()
    for start in range(0, len(factor), BLOCK):
        stop = start + BLOCK
        found[start:stop] = np.linalg.solve(factor[start:stop, start:stop], found[start:stop])
        found[stop:] -= factor[stop:, start:stop] @ found[start:stop]
    return found


def solved_upper(factor: F64, right: F64) -> F64:
    """X of `factor.T @ X = right`, of the same triangle: from the last row on."""
    return solved_lower(factor[::-1, ::-1].T, right[::-1])[::-1]


def fit_kernel(trials: SourceTrials) -> FittedKernel | None:
    """For the trials of one domain: the setting with the least leave-one-out error.

    The slower a strategy, the less exact: a trial's noise is taken to grow with its seconds, so
    that the fastest strategies, which a search is after, count most. None where the left-out error
    does not fall significantly.
    """
    residual = trials.residual
    variance = float(residual.var()) if len(residual) else 0.0
    if len(residual) < FEWEST_FOR_PROCESS or variance < 1e-12:
        return None
    loss, own = RobustLoss(residual, 1.0 / trials.speed), trials.as_own()
    table = np.asarray(trials.summary, dtype=np.float64)
    center, scale = _scaling(table.mean(axis=0), table.std(axis=0))
    best: FittedKernel | None = None
    least, corrections = np.inf, np.zeros(len(residual))
    for setting in SETTINGS:
        check_cancelled()
        kernel = FittedKernel(center, scale, setting, variance)
        process = solved(kernel, own)
        guess = process.left_out(residual)
        if (error := float(loss(residual - guess).mean())) < least:
            least, best, corrections = error, kernel, guess
    gain = loss(residual) - loss(residual - corrections)
    return best if is_significant(gain) else None


def fit_pooled_kernel(sources: SourceTrials, counts: F64) -> FittedKernel | None:
    """For several domains: the setting that suits a domain that is left out best, where the others
    count by their likeness to it. None where no setting helps those left out.

    counts f64[S]: how much each domain's error matters.
    """
    present = np.unique(sources.source)
    table = np.asarray(sources.summary, dtype=np.float64)
    by_domain = [table[sources.source == k] for k in present]
    center = np.mean([each.mean(axis=0) for each in by_domain], axis=0)
    spread = np.mean([((each - center) ** 2).mean(axis=0) for each in by_domain], axis=0)
    center, scale = _scaling(center, np.sqrt(spread))
    variance = float(np.mean([sources.residual[sources.source == k].var() for k in present]))
    errors = np.zeros(len(POOLED) + 1)
    for left in present:
        rows = sources.source == left
        others = sources.without(left) if len(present) > 1 else sources
        related = others.related(sources.descriptors[left])
        residual = sources.residual[rows]
        loss = RobustLoss(residual, 1.0 / sources.speed[rows])
        for number, setting in enumerate(POOLED):
            check_cancelled()
            kernel = FittedKernel(center, scale, setting, variance)
            process = solved(kernel, related)
            miss = residual - process.correction(table[rows])
            errors[number] += counts[left] * loss(miss - np.median(miss)).mean()
        errors[-1] += counts[left] * loss(residual).mean()
    best = int(np.argmin(errors))
    return FittedKernel(center, scale, POOLED[best], variance) if best < len(POOLED) else None


def _kernel(left: F64, right: F64, setting: KernelSettings) -> F64:
    inner = left @ right.T / left.shape[1]
    squares = (left**2).mean(axis=1)[:, None] + (right**2).mean(axis=1)[None, :]
    distance = np.maximum(squares - 2.0 * inner, 0.0)
    result: F64 = np.exp(-0.5 * distance / setting.length**2) + setting.linear * inner
    return result


def _scaling(center: F64, std: F64) -> tuple[F64, F64]:
    return center, np.where(std > 1e-9, std, np.inf)


class GaussianModel:
    """Corrects the timeline by one process over all trials it knows.

    kernel: None where nothing significant was learned.
    """

    with_shards = False
    seed = 0
    recipe = Recipe("gaussian")

    def __init__(self) -> None:
        self.known = KnownTrials()
        self.kernel: FittedKernel | None = None
        self._solved: tuple[bytes, GaussianProcess] | None = None

    def fit(self, trials: LabelledTrials) -> FittedScores:
        base, descriptor = np.log(trials.features.base_seconds), trials.features.descriptor
        own = kept_trials([trials], most=None)
        if self.known.sources is None:
            self.kernel = fit_kernel(own)
        elif self.kernel is not None:
            self._learn(KnownTrials(self.known.sources))
            others = self._process(descriptor)
            own = own.at_level_of(others.correction(trials.features.summary))
        left_out = np.ones(len(base), dtype=np.bool_)
        if self.kernel is None:
            return FittedScores(base, left_out)
        self._learn(KnownTrials(self.known.sources, own))
        residual = self.known.related(descriptor).residual
        corrections = self._process(descriptor).left_out(residual)[-len(own) :]
        return FittedScores(base + corrections, left_out)

    def pretrain(self, sources: Sequence[LabelledTrials], importance: F64) -> None:
        kept = kept_trials(sources)
        self._learn(KnownTrials(kept))
        self.kernel = fit_pooled_kernel(kept, importance)

    def scores(self, domain: Domain, features: StrategyFeatures) -> F64:
        base: F64 = np.log(features.base_seconds)
        if self.kernel is None:
            return base
        return base + self._process(features.descriptor).correction(features.summary)

    def scores_with_std(self, domain: Domain, features: StrategyFeatures) -> tuple[F64, F64]:
        base = np.log(features.base_seconds)
        if self.kernel is None:
            return base, np.zeros(len(base))
        process = self._process(features.descriptor)
        correction, std = process.correction_with_std(features.summary)
        return base + correction, std

    def arrays(self) -> dict[str, NDArray[Any]]:
        if self.kernel is None:
            return {}
        return nested("kernel.", self.kernel.arrays()) | self.known.arrays()

    def array_forms(self, given: Arrays) -> dict[str, ArrayForm]:
        columns = len(SUMMARY_COLUMNS)
        found = forms_if_given("kernel.", FittedKernel.array_forms(columns), given)
        return found | KnownTrials.array_forms(columns, given) if found else {}

    def load(self, arrays: Arrays) -> None:
        if kernel := below("kernel.", arrays):
            self.kernel = FittedKernel.from_arrays(kernel)
            self._learn(KnownTrials.from_arrays(arrays))

    def _learn(self, known: KnownTrials) -> None:
        self.known, self._solved = known, None

    def _process(self, descriptor: F64) -> GaussianProcess:
        """Solved for a domain; the last one's is kept."""
        assert self.kernel is not None
        if self._solved is None or self._solved[0] != descriptor.tobytes():
            process = solved(self.kernel, self.known.related(descriptor))
            self._solved = descriptor.tobytes(), process
        return self._solved[1]
