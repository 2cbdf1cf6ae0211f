"""An exact Gaussian process on log residuals: what similar strategies were off by.

A trial's residual is the logarithm of its measured seconds over the timeline's. Between two trials
the covariance is the sum of three parts, each times the correlation of their domains:

    level     a constant: a whole domain runs slower or faster than the timeline says
    linear    inner products of the columns, and of an encoder's hidden state
    smooth    a Matern kernel (nu 3/2) of the distance over all of them

Within a domain the correlation is 1; between two it is a learned share that falls exponentially
with the distance of their descriptors (the intrinsic model of coregionalization; Alvarez, Rosasco
and Lawrence 2012, section 4.2). Slower strategies have more noise. Everything is NumPy in float64,
since rankings load neither torch nor SciPy; `kernel_training` learns the kernel.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosync.simulator.learned.features.domain_descriptor import DESCRIPTOR
from autosync.simulator.learned.features.feature_names import SUMMARY_COLUMNS
from autosync.simulator.learned.features.strategy_features import StrategyFeatures

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

BOUND = 4.0
"""Standard deviations to which a column's value is clipped."""
LARGEST = 1.0
"""Log seconds about a domain's median to which residuals are clipped."""
MOST_OF_A_SOURCE = 64
"""Trials of a domain that are kept."""
FAST_SHARE = 2 / 3
"""Of these, the fastest by the timeline, where searches look; the others are spread evenly."""
MOST_TRIALS = 1536
"""Of other domains, the nearest first, that speak for one: time grows with their cube."""
OTHER_BACKEND = 0.5
"""How the linear and smooth parts of two domains of different backends correlate beside that.
Assumed: all measured domains use gloo. Their levels do not correlate."""
UNSEEN_LEVEL = 0.035
"""Standard deviation of the level of a domain whose backend no trial has shown: the timeline's
error in published rows of NCCL clusters that no constant was fitted to (docs/gpu-clusters.md)."""
OWN_NOISE = 1 / 2
"""Of the noise of trials, where they are of the domain at hand: those of others also differ by what
neither columns nor descriptors tell."""
LIMITS = {
    "linear": (1e-6, 1.0),
    "weights": (1e-6, 1e3),
    "level": (1e-4, 1.0),
    "smooth": (1e-4, 1.0),
    "reach": (1e-2, 1e4),
    "noise": (1e-3, 1.0),
    "power": (1e-3, 10.0),
    "correlations": (0.0, 1.0),
    "residual": (-10.0, 10.0),
    "slowness": (1.0, 1e6),
}
"""Least and largest values of a kernel's fields and of kept trials: within them every covariance
has a Cholesky factor, whoever wrote the checkpoint."""
NCCL = DESCRIPTOR.index("nccl")
HIDDEN = 8
"""Columns of an encoder's hidden state, behind the others."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The process before any trial.

    center, scale f64[F]: of the columns; scale is infinite where a column does not vary.
    linear f64[G]: standard deviation of the linear part, log seconds: of the columns and, if there
    is an encoder, of its hidden state. weights f64[G]: of the mean square of each of these groups
    in the squared distance of the smooth part. level, smooth: standard
    deviations of these parts. correlations f64[3]: of level, linear and smooth between domains of
    equal descriptors. reach: the distance of descriptors over which these fall to 1/e. noise:
    standard deviation of the fastest strategy's noise; its variance grows with the `power` of a
    strategy's seconds over the fastest one's.
    """

    center: F64
    scale: F64
    linear: F64
    weights: F64
    correlations: F64
    level: float
    smooth: float
    reach: float
    noise: float
    power: float

    def standard(self, columns: NDArray[np.floating]) -> F64:
        """Standardised columns, `(n, F)`, or the first of them."""
        center, scale = self.center[: columns.shape[1]], self.scale[: columns.shape[1]]
        result: F64 = np.clip((columns - center) / scale, -BOUND, BOUND)
        return result

    def noise_variance(self, slowness: F64) -> F64:
        """slowness `(n,)`: a strategy's seconds over the fastest one's, by the timeline."""
        result: F64 = self.noise**2 * slowness**self.power
        return result


def start_kernel(center: F64, scale: F64, hidden: bool = False) -> Kernel:
    """Where learning starts and stays near, and what a process without any other domain uses: the
    values that rank best on picks and replays (benchmarks/evaluation). hidden: with an
    encoder's hidden state behind the columns, which is read as it is."""
    if hidden:
        center = np.concatenate((center, np.zeros(HIDDEN)))
        scale = np.concatenate((scale, np.ones(HIDDEN)))
    groups = int(column_groups(len(center)).max()) + 1
    return Kernel(
        center,
        scale,
        linear=np.array([0.022, 0.011])[:groups],
        weights=np.array([0.44, 0.022])[:groups],
        correlations=np.array([0.75, 0.8, 0.8]),
        level=0.05,
        smooth=0.07,
        reach=50.0,
        noise=0.03,
        power=2.0,
    )


def column_groups(columns: int) -> I64:
    """The group of each of `columns` columns: 0 of the summary's, 1 of an encoder's."""
    return (np.arange(columns) >= len(SUMMARY_COLUMNS)).astype(np.int64)


def covariance(kernel: Kernel, left: F64, right: F64, shared: F64) -> F64:
    """Of standardised strategies, `(n, F)` and `(m, F)` to `(n, m)`. shared `(3, n, m)`, or what
    broadcasts to it: the correlations of their domains."""
    near, far = _scaled(left, kernel.weights), _scaled(right, kernel.weights)
    squares = (near**2).sum(axis=1)[:, None] + (far**2).sum(axis=1) - 2.0 * near @ far.T
    distance = np.sqrt(3.0 * np.maximum(squares, 0.0))
    smooth = kernel.smooth**2 * (1.0 + distance) * np.exp(-distance)
    linear = _scaled(left, kernel.linear**2) @ _scaled(right, kernel.linear**2).T
    result: F64 = kernel.level**2 * shared[0] + linear * shared[1] + smooth * shared[2]
    return result


def _scaled(standard: F64, weights: F64) -> F64:
    """Columns whose products are sums over groups of a group's weight times its mean product."""
    group = column_groups(standard.shape[1])
    result: F64 = standard * np.sqrt(weights / np.bincount(group))[group]
    return result


def domain_correlations(kernel: Kernel, left: F64, right: F64) -> F64:
    """Of level, linear and smooth between descriptors `(a, D)` and `(b, D)`: `(3, a, b)`."""
    far = np.linalg.norm(left[:, None] - right, axis=2)
    other = left[:, None, NCCL] != right[:, NCCL]
    across = np.array([0.0, OTHER_BACKEND, OTHER_BACKEND])[:, None, None]
    shared = kernel.correlations[:, None, None] * np.exp(-far / kernel.reach)
    result: F64 = np.where(far == 0.0, 1.0, shared * np.where(other, across, 1.0))
    return result


@dataclass(frozen=True, slots=True)
class SourceTrials:
    """n trials of one domain, as a process keeps them.

    descriptor f64[D]: of the domain. columns f32[n, F]: of each strategy. residual f64[n]: log of
    measured over the timeline's seconds. slowness f64[n]: the timeline's seconds over the fastest
    strategy's.
    """

    descriptor: F64
    columns: NDArray[np.float32]
    residual: F64
    slowness: F64

    def __len__(self) -> int:
        return len(self.residual)


def source_trials(features: StrategyFeatures, step_seconds: F64) -> SourceTrials:
    """All trials of a domain. step_seconds `(n,)`: measured."""
    residual = np.log(step_seconds / features.base_seconds)
    level = np.median(residual)
    return SourceTrials(
        features.descriptor,
        features.summary.astype(np.float32),
        np.clip(residual, level - LARGEST, level + LARGEST),
        np.minimum(features.base_seconds / features.base_seconds.min(), LIMITS["slowness"][1]),
    )


def kept_rows(base_seconds: F64, most: int = MOST_OF_A_SOURCE) -> I64:
    """Of trials `(n,)` at most so many: the fastest by the timeline, and others at even
    distances."""
    if len(base_seconds) <= most:
        return np.arange(len(base_seconds))
    order = np.argsort(base_seconds, kind="stable")
    fast = round(FAST_SHARE * most)
    others = np.linspace(fast, len(order) - 1, most - fast).astype(np.int64)
    return np.sort(np.concatenate((order[:fast], order[others])))


def standardisation(sources: Sequence[SourceTrials]) -> tuple[F64, F64]:
    """Center and scale of the columns, each domain counting alike; scale is the spread about the
    common center."""
    tables = [source.columns.astype(np.float64) for source in sources]
    center = np.mean([table.mean(axis=0) for table in tables], axis=0)
    spread = np.mean([((table - center) ** 2).mean(axis=0) for table in tables], axis=0)
    scale = np.sqrt(spread)
    return center, np.where(scale > 1e-9, scale, np.inf)


class Posterior:
    """The process given trials of other domains and of the domain at hand.

    It holds the inverse W of the Cholesky factor of the trials' covariance, so that a mean is
    (W r) . (W k) and a variance k0 - |W k|^2; more trials extend it by rows.
    """

    def __init__(self, kernel: Kernel, sources: Sequence[SourceTrials], descriptor: F64) -> None:
        if not any(source.descriptor[NCCL] == descriptor[NCCL] for source in sources):
            kernel = replace(kernel, level=max(kernel.level, UNSEEN_LEVEL))
        near = _nearest(sources, descriptor)
        descriptors = np.array([*(source.descriptor for source in near), descriptor])
        self.kernel, self.descriptor = kernel, descriptor
        self._correlations = domain_correlations(kernel, descriptors, descriptors)
        self._known = np.zeros((0, len(kernel.center)))
        self._domain = np.zeros(0, dtype=np.int64)  # of each row; -1 is the one at hand
        self._inverse, self._whitened = np.zeros((0, 0)), np.zeros(0)
        if near:
            self._add(near, np.arange(len(near)), 1.0)

    def given(self, own: SourceTrials) -> "Posterior":
        """With trials of the domain at hand as well."""
        found = copy(self)
        found._add([own], np.array([-1]), OWN_NOISE)
        return found

    def mean_and_std(self, columns: NDArray[np.floating]) -> tuple[F64, F64]:
        """Of strategies of the domain, `(n, F)` to `(n,)` each: log seconds, without noise."""
        kernel, rows = self.kernel, self.kernel.standard(columns)
        cross = self._inverse @ self._between(rows, np.array([-1]))
        linear = (_scaled(rows, kernel.linear**2) ** 2).sum(axis=1)
        variance = kernel.level**2 + linear + kernel.smooth**2 - (cross**2).sum(axis=0)
        return self._whitened @ cross, np.sqrt(np.maximum(variance, 0.0))

    def level(self) -> float:
        """The mean of the domain's level alone."""
        cross = self.kernel.level**2 * self._correlations[0, self._domain, -1]
        return float(self._whitened @ (self._inverse @ cross))

    def _between(self, rows: F64, domain: I64) -> F64:
        """Of the trials and strategies of these domains, or all of one: `(T, n)`."""
        shared = self._correlations[:, self._domain[:, None], domain]
        return covariance(self.kernel, self._known, rows, shared)

    def _add(self, trials: Sequence[SourceTrials], numbers: I64, noise: float) -> None:
        """numbers: of their domains. noise: a share of the kernel's."""
        rows = np.concatenate([self.kernel.standard(each.columns) for each in trials])
        residual = np.concatenate([each.residual for each in trials])
        slowness = np.concatenate([each.slowness for each in trials])
        domain = np.repeat(numbers, [len(each) for each in trials])
        cross = self._inverse @ self._between(rows, domain)
        own = covariance(
            self.kernel, rows, rows, self._correlations[:, domain[:, None], domain[None, :]]
        )
        noisy = own - cross.T @ cross + np.diag(noise**2 * self.kernel.noise_variance(slowness))
        corner = np.linalg.inv(np.linalg.cholesky(noisy))
        below, right = -corner @ cross.T @ self._inverse, np.zeros((len(self._known), len(rows)))
        missed = corner @ (residual - cross.T @ self._whitened)
        self._inverse = np.block([[self._inverse, right], [below, corner]])
        self._whitened = np.concatenate((self._whitened, missed))
        self._known = np.concatenate((self._known, rows))
        self._domain = np.concatenate((self._domain, domain))


def _nearest(sources: Sequence[SourceTrials], descriptor: F64) -> list[SourceTrials]:
    """As many of the most similar domains as MOST_TRIALS allow, in their order."""
    far = [float(np.linalg.norm(source.descriptor - descriptor)) for source in sources]
    order = sorted(range(len(sources)), key=far.__getitem__)
    trials = np.cumsum([len(sources[number]) for number in order])
    return [sources[number] for number in sorted(order[: int((trials <= MOST_TRIALS).sum())])]
