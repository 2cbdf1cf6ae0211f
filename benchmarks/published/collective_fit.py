"""Fits the constants of NCCL's algorithms to the published sweeps, and leaves systems out.

Every quantity has a prior by class and two shifts of its logarithm: one that is common to all
links, all networks or all generations of GPUs, and a smaller one of the class itself. So a class
without a sweep of its own follows the others. The fit is the most likely value given rows and
priors; errors beyond ROW_ERROR count less than by their square.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from autosync.bundled_data import data_folder
from autosync.documents import to_data
from autosync.simulator.backends.nccl.algorithms import Candidate, Lookup, candidates
from autosync.simulator.backends.nccl.collectives import classes_of, log_widths
from autosync.simulator.backends.nccl.constants import (
    GENERATIONS,
    PRIORS,
    TRANSPORT_SHARES,
    Constant,
    FittedConstants,
    FittedValue,
)
from autosync.simulator.backends.nccl.tuner import ONLY_FORCED, fastest
from benchmarks.published.collective_rows import (
    SMALL_BYTES,
    Sweep,
    read_statements,
    read_sweeps,
)

F64 = NDArray[np.float64]
Table = dict[tuple[str, str], Constant]

ROW_ERROR = 0.2
"""Standard deviation of a row's relative error."""
MOST_ROWS = 10.0
"""As how many independent rows a sweep counts: its sizes are off together."""
DOUBTFUL = 0.4
"""Weight of a sweep with settings or noise that its author remarks on (trust B)."""
STEP = 1e-3
EVALUATIONS = 20

COMMON_WIDTHS = (
    ("fill", 0.8),
    ("hop_nvls", 0.4),
    ("hop_ll_", 0.05),
    ("hop", 0.5),
    ("launch_ll_", 0.1),
    ("launch", 1.0),
    ("share", 0.05),
    ("ll_share", 0.5),
    ("ll128_share", 0.2),
    ("tree_share", 0.15),
    ("nvls", 0.05),
    ("connection", 0.3),
    ("host", 0.2),
    ("proxy", 0.2),
)
"""One standard deviation of the shift that all classes of a kind share, by how a quantity's name
begins. LL's hops and launches are those of NCCL's tuner, which are found in every late sweep."""
CLASS_WIDTHS = (
    ("fill", 0.9),
    ("hop_ll_", 0.2),
    ("hop", 0.6),
    ("launch_ll_", 0.9),
    ("launch", 0.4),
    ("share", 0.12),
    ("ll_share", 0.6),
    ("ll128_share", 0.2),
    ("tree_share", 0.2),
    ("nvls", 0.1),
    ("connection", 0.4),
    ("host", 0.4),
    ("proxy", 0.4),
)
"""The same of the shift of one class."""
SHARE_WIDTHS = {"nvlink": 0.05, "pcie": 0.3}
"""NVLinks of a generation are alike; what a slot reaches depends on switches and host bridges that
no file states."""
NETWORK_HOP_WIDTH = 0.3
"""Networks of one kind differ by their switches, NICs and drivers."""
INFINIBAND_HOP_WIDTH = 0.05
"""NCCL's tuner has its hop from InfiniBand, and late sweeps agree to 1 %."""


def kind_of(name: str) -> str:
    """Of a class: gpu, network, nvlink or pcie."""
    if name in GENERATIONS:
        return "gpu"
    if name in TRANSPORT_SHARES:
        return "network"
    return "nvlink" if name.startswith("nvlink") else "pcie"


def _width(widths: Iterable[tuple[str, float]], quantity: str) -> float:
    return next(width for start, width in widths if quantity.startswith(start))


def class_width(name: str, quantity: str) -> float:
    """One standard deviation of a class's own shift."""
    if quantity == "share" and kind_of(name) in SHARE_WIDTHS:
        return SHARE_WIDTHS[kind_of(name)]
    if quantity == "hop_ll_seconds" and kind_of(name) == "network":
        return INFINIBAND_HOP_WIDTH if name == "infiniband" else NETWORK_HOP_WIDTH
    return _width(CLASS_WIDTHS, quantity)


class Predicted(NamedTuple):
    """A sweep with what constants predict. seconds, log_widths f64[n]: see `collectives`."""

    sweep: Sweep
    seconds: F64
    log_widths: F64

    def interval(self, scale: float) -> tuple[F64, F64]:
        """Least and most seconds, `(n,)` each."""
        factor = np.exp(scale * self.log_widths)
        return self.seconds / factor, self.seconds * factor


def predict(sweep: Sweep, table: Table, floor_seconds: float | None = None) -> Predicted:
    """A sweep at given constants. floor_seconds: see `floored`."""
    choices = choices_of(sweep, lambda *key: table[key])
    seconds, place = fastest(choices, sweep.size_bytes)
    widths = log_widths(choices, place, sweep.size_bytes, seconds)
    return Predicted(sweep, floored(sweep, seconds, floor_seconds), widths)


def choices_of(sweep: Sweep, lookup: Lookup) -> tuple[Candidate, ...]:
    """What NCCL chose among."""
    forced = sweep.forced.algorithm
    return tuple(
        each
        for each in candidates(sweep.topology, sweep.operation, lookup)
        if (each.algorithm == forced if forced else each.algorithm not in ONLY_FORCED)
    )


def floored(sweep: Sweep, seconds: F64, floor_seconds: float | None = None) -> F64:
    """A process that drives several GPUs starts no operation before it has launched the one before
    on all of them: its least time is a floor, and no constant of the system.

    floor_seconds: by default the sweep's own. A sweep that was left out gets that of other systems,
    because its own is a measurement that the prediction must not know.
    """
    if not sweep.one_process:
        return seconds
    floor = launch_floor_seconds((sweep,)) if floor_seconds is None else floor_seconds
    result: F64 = (seconds**4 + floor**4) ** 0.25
    return result


def launch_floor_seconds(sweeps: Iterable[Sweep]) -> float:
    """The least time of small messages where one process drives several GPUs, the median of the
    sweeps; 0 where none of them has small messages."""
    small = [each.seconds[each.size_bytes < SMALL_BYTES] for each in sweeps if each.one_process]
    least = [seconds.min() for seconds in small if len(seconds)]
    return float(np.median(least)) if least else 0.0


class CollectiveFit:
    """The fit of some sweeps.

    unknown: logarithms over their widths, first of the common shifts (kind, quantity), then of the
    classes' own, where a sweep has any to say of them.
    """

    def __init__(self, sweeps: tuple[Sweep, ...]) -> None:
        self.sweeps = sweeps
        self.of_class = Counter(name for sweep in sweeps for name in classes_of(sweep.topology))
        self.common = sorted({(kind_of(name), quantity) for name, quantity in PRIORS})
        self.own = [key for key in PRIORS if key[0] in self.of_class]
        widths = [_width(COMMON_WIDTHS, quantity) for _, quantity in self.common]
        self.widths = np.array(widths + [class_width(*key) for key in self.own])

    def values(self, unknown: F64) -> dict[tuple[str, str], F64]:
        """Of every quantity of every class, `(...)`. unknown: `(..., unknowns)`."""
        logs = np.moveaxis(unknown * self.widths, -1, 0)
        common = dict(zip(self.common, logs, strict=False))
        own = dict(zip(self.own, logs[len(self.common) :], strict=True))
        found = {}
        for (name, quantity), prior in PRIORS.items():
            shift = common[kind_of(name), quantity] + own.get((name, quantity), 0.0)
            found[name, quantity] = np.clip(prior.value * np.exp(shift), prior.low, prior.high)
        return found

    def found(self) -> Table:
        """The most likely constants."""
        start = np.zeros(len(self.widths))
        result = least_squares(
            self._residuals, start, self._slopes, max_nfev=EVALUATIONS, ftol=1e-3, xtol=1e-3
        )
        values = self.values(result.x)
        return {key: replace(each, value=float(values[key])) for key, each in PRIORS.items()}

    def _residuals(self, unknown: F64) -> F64:
        values = self.values(unknown)
        of_sweeps = [self._of_sweep(sweep, values) for sweep in self.sweeps]
        return np.concatenate([*of_sweeps, unknown])

    def _of_sweep(self, sweep: Sweep, values: dict[tuple[str, str], F64]) -> F64:
        """`(..., sizes)`."""
        errors = np.log(sweep.seconds / trial_seconds(sweep, values)) / ROW_ERROR
        robust = np.sign(errors) * np.sqrt(2.0 * (np.sqrt(1.0 + errors**2) - 1.0))
        weight = DOUBTFUL if sweep.trust == "B" else 1.0
        result: F64 = robust * np.sqrt(min(1.0, MOST_ROWS / len(sweep.seconds))) * weight
        return result

    def _slopes(self, unknown: F64) -> F64:
        """By differences, each unknown moved in a trial of its own."""
        before, moved = self.values(unknown), self.values(unknown + STEP * np.eye(len(unknown)))
        of_sweeps = [
            (self._of_sweep(sweep, moved) - self._of_sweep(sweep, before)) / STEP
            for sweep in self.sweeps
        ]
        return np.vstack([np.hstack(of_sweeps).T, np.eye(len(unknown))])


def trial_seconds(sweep: Sweep, values: dict[tuple[str, str], F64]) -> F64:
    """Predicted, `(..., sizes)`, at values `(...)` of every quantity."""

    def lookup(name: str, quantity: str) -> Constant:
        return replace(PRIORS[name, quantity], value=cast(float, values[name, quantity]))

    curves = [each.seconds(sweep.size_bytes) for each in choices_of(sweep, lookup)]
    return floored(sweep, np.minimum.reduce(np.broadcast_arrays(*curves)))


def fitted(sweeps: tuple[Sweep, ...]) -> Table:
    """The constants that sweeps give. Those of a class with sweeps are as wide as systems of a
    class differ, those of the others as wide as classes do."""
    fit = CollectiveFit(sweeps)
    found = {}
    for (name, quantity), each in fit.found().items():
        measured = fit.of_class[name]
        width = class_width(name, quantity)
        if not measured:
            width = float(np.hypot(width, each.width))
        found[name, quantity] = replace(each, measured=measured, width=width)
    return found


@cache
def left_out() -> tuple[Predicted, ...]:
    """Every complete sweep by constants that no sweep of its system was fitted to, and by the
    launches of other systems."""
    sweeps = complete_sweeps()
    found = []
    for family in dict.fromkeys(sweep.family for sweep in sweeps):
        others = tuple(sweep for sweep in sweeps if sweep.family != family)
        table, floor = fitted(others), launch_floor_seconds(others)
        found += [predict(sweep, table, floor) for sweep in sweeps if sweep.family == family]
    return tuple(found)


def interval_scale(found: tuple[Predicted, ...]) -> float:
    """By which widths are multiplied so that nine of ten rows lie in their intervals."""
    off = [np.abs(np.log(each.sweep.seconds / each.seconds)) / each.log_widths for each in found]
    return float(np.quantile(np.concatenate(off), 0.9))


@cache
def complete_sweeps() -> tuple[Sweep, ...]:
    """Those whose columns say what a prediction needs, and single statements."""
    return (*(sweep for sweep in read_sweeps() if sweep.complete), *read_statements())


def write(table: Table, scale: float) -> None:
    """Write the fitted values to datasets/nccl/constants.json."""
    classes: dict[str, dict[str, FittedValue]] = {}
    for (name, quantity), each in table.items():
        value = FittedValue(_rounded(each.value), _rounded(each.width), each.measured)
        classes.setdefault(name, {})[quantity] = value
    document = to_data(FittedConstants(classes, _rounded(scale)))
    path = data_folder("nccl") / "constants.json"
    path.write_text(json.dumps(document, indent=1) + "\n")


def _rounded(value: float) -> float:
    """To three digits: more are not known."""
    return float(f"{value:.3g}")
