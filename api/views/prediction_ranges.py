"""Seconds between which nine of ten measurements around a prediction are expected; what binds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autosync.api.prediction_spec import JobSpec, PlacedJobSpec
from autosync.domain import Domain
from autosync.plan import PlanTable
from autosync.population import Population
from autosync.simulator.binding import (
    AssumedIteration,
    assumed_iterations,
    at_network_speed,
    binding_of,
)
from autosync.simulator.cost.applied_constants import (
    ESTIMATED_COMPUTE_SHARE,
    extrapolations,
    interval_share,
    with_replication_costs,
)
from autosync.simulator.cost.class_constants import network_factors, unmeasured_classes
from autosync.simulator.cost.collective_costs import on_nccl_gpus
from autosync.simulator.cost.fitted_constants import Constants, constants_of, load_constants
from autosync.simulator.cost.replication_constants import (
    REPLICATION,
    replication_slowdown,
    with_replication,
)

UNKNOWN_SHARE = 0.5
"""Relative half-width of intervals where no constants are used."""
ESTIMATED = "compute is an estimate: state the seconds of a step (`step_seconds`)"
BY_CLASS = "by-class"
"""What answers name as constants where they are those of a system's classes."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The domain with what its constants add. share: relative half-width of intervals, besides
    `network`: between which multiples of their seconds messages are expected."""

    domain: Domain
    constants: Constants | None
    share: float
    warnings: tuple[str, ...]
    network: tuple[float, float] = (1.0, 1.0)
    name: str | None = None


def calibrate(alone: Domain, name: str, compute_is_known: bool) -> Calibration:
    """A domain profiled on one device, at the constants of that name.

    name: `auto` for those that belong to the cluster by its name, or to the classes of any other
    NCCL cluster; `none`.

    Raises:
        NotFound: there are no constants of that name.
    """
    own = constants_of(alone.cluster)
    constants = own if name in ("auto", "none") else load_constants(name)
    if name == "auto" and constants is None and on_nccl_gpus(alone.cluster):
        return _calibrate_by_class(alone, compute_is_known)
    if name == "none" or constants is None:
        why = "no published measurement covers these links: the interval is a guess"
        return Calibration(alone, None, UNKNOWN_SHARE, (why,))
    beyond = extrapolations(alone, constants)
    warnings = [f"beyond what was measured: {each.why}" for each in beyond]
    if own != constants:
        warnings.append(f"nothing was fitted on {alone.cluster.name}: constants of another cluster")
    if not compute_is_known:
        warnings.append(ESTIMATED)
    share = interval_share(constants, beyond, compute_is_known)
    domain = with_replication_costs(alone, constants)
    return Calibration(domain, constants, share, tuple(warnings), name=constants.name)


def _calibrate_by_class(alone: Domain, compute_is_known: bool) -> Calibration:
    warnings = [*unmeasured_classes(alone.cluster)]
    share = REPLICATION.error_share
    if not compute_is_known:
        warnings.append(ESTIMATED)
        share += ESTIMATED_COMPUTE_SHARE
    domain = with_replication(alone, replication_slowdown(alone.cluster))
    largest = float(alone.variables.size_bytes.max())
    network = network_factors(alone.cluster, largest)
    return Calibration(domain, None, share, tuple(warnings), network, BY_CLASS)


def compute_is_known(alone: Domain, body: JobSpec) -> bool:
    """Whether the domain's compute is measured, or stated by whoever asks."""
    stated = isinstance(body, PlacedJobSpec) and (body.compute_is_known or body.step_seconds)
    return bool(stated) or alone.compute_source == "measured"


@dataclass(frozen=True, slots=True)
class PredictedRange:
    """seconds: of an update, with all its batches. low_seconds, high_seconds: nine of
    ten measurements are expected between them. binding: what shortens the iteration most where it
    is faster."""

    seconds: float
    low_seconds: float
    high_seconds: float
    binding: str


def predicted_ranges(
    calibration: Calibration,
    domain: Domain,
    population: Population,
    plans: PlanTable,
    seconds: Sequence[float],
) -> list[PredictedRange]:
    """Around the predicted seconds of each strategy in a domain; one by one, since how much longer
    an iteration is where messages are as slow as may be depends on what hides them. The timeline
    tells it for every predictor.

    plans: the population's.
    """
    ratios, bindings = [], []
    for iteration in assumed_iterations(plans, population, domain):
        ratios.append(_network_ratios(iteration, calibration.network))
        bindings.append(binding_of(iteration).resource)
    own, width = np.array(seconds, dtype=np.float64), 1.0 + calibration.share
    low, high = (own * each for each in np.array(ratios).reshape(-1, 2).T)
    columns = zip(
        own.tolist(), (low / width).tolist(), (high * width).tolist(), bindings, strict=True
    )
    return [PredictedRange(*each) for each in columns]


def _network_ratios(
    iteration: AssumedIteration, factors: tuple[float, float]
) -> tuple[float, float]:
    """Of the iteration's seconds where messages take these multiples of theirs, over its own."""
    if factors == (1.0, 1.0):
        return factors
    own = iteration.seconds()
    low, high = (
        iteration.seconds(at_network_speed(iteration.inputs.costs, each)) / own for each in factors
    )
    return min(low, 1.0), max(high, 1.0)
