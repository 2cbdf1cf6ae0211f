"""What given strategies take on a cluster one need not have: seconds, an interval, and what both
rest on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from sqlalchemy.orm import Session

from autosync.api.db.lookup import not_found
from autosync.api.http.named_documents import domain_named
from autosync.api.spec import PredictSpec
from autosync.api.views.schemas import GivenPrediction, GivenPredictions
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.population import encode
from autosync.simulator.accumulation import accumulated_seconds
from autosync.simulator.backends import backend_of
from autosync.simulator.binding import (
    AssumedIteration,
    assumed_iteration,
    at_network_speed,
    binding_of,
)
from autosync.simulator.cost.applied_constants import (
    ESTIMATED_COMPUTE_SHARE,
    extrapolations,
    interval_share,
    with_engine,
    with_replication_costs,
)
from autosync.simulator.cost.class_constants import (
    FITTED,
    MEASURED,
    network_factors,
    unmeasured_classes,
)
from autosync.simulator.cost.collective_costs import on_nccl_gpus
from autosync.simulator.cost.fitted_constants import Constants, constants_of, load_constants
from autosync.simulator.cost.replication_constants import (
    REPLICATION,
    replication_slowdown,
    with_replication,
)
from autosync.simulator.limit import iteration_limit
from autosync.simulator.memory.memory_check import fitting_rows, most_peak_bytes
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.simulator_contract import Simulator
from autosync.strategy import Strategy
from autosync.verification import verify

UNKNOWN_SHARE = 0.5
"""Relative half-width of intervals where no constants are used."""


@dataclass(frozen=True, slots=True)
class StrategyToPredict:
    """A strategy to predict. engine: the system whose time a message it pays, or none."""

    name: str
    strategy: Strategy
    engine: str = ""


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


def given_predictions(session: Session, body: PredictSpec) -> GivenPredictions:
    """
    Raises:
        NotFound: no such graph, cluster, strategy, simulator or constants.
        InvalidInput, InvalidStrategy, NotSupported: a strategy does not apply to the domain, or
            nobody has fitted its engine; says why.
    """
    from autosync.api.engine.simulator_store import simulator_of

    alone = domain_named(session, body, body.cluster, body.profile)
    known = body.compute_is_known or alone.compute_source == "measured"
    calibration = calibrate(alone, body.constants, known)
    domain, fitted = calibration.domain, calibration.constants
    asked = strategies_to_predict(domain, body.strategies)
    predictor = simulator_of(session, body.simulator)
    by_class = calibration.name == BY_CLASS
    return GivenPredictions(
        constants=calibration.name,
        constants_fitted=fitted.fitted if fitted else FITTED if by_class else "",
        constants_measured=fitted.measured if fitted else MEASURED if by_class else "",
        items=answer_all(calibration, asked, body.engine, predictor, body.accumulate),
    )


def strategies_to_predict(
    domain: Domain, given: Sequence[str | Strategy]
) -> list[StrategyToPredict]:
    """The named or given strategies; all hand-designed ones where there are none. Raises as
    `given_predictions`."""
    from autosync.search.designs.design_table import hand_designed, torch_designs
    from autosync.search.space import Space

    if not given:
        designs = [*hand_designed(domain, Space()), *torch_designs(domain, Space())]
        return [StrategyToPredict(name, design) for name, design in designs]
    found = [_named(domain, each) for each in given]
    for one in found:
        verify(one.strategy, domain, allow_lossy=True, allow_inexact=True)
    return found


def _named(domain: Domain, given: str | Strategy) -> StrategyToPredict:
    from autosync.search.designs.design_table import DESIGNS, TORCH_DESIGNS
    from autosync.search.designs.published_methods import METHODS, method_named

    if isinstance(given, Strategy):
        return StrategyToPredict(given.name or given.id[:8], given)
    if given.lower() in map(str.lower, METHODS):
        method = method_named(given)
        return StrategyToPredict(given, method.build(domain), method.engine)
    designs = DESIGNS | TORCH_DESIGNS
    if given not in designs:
        known = ", ".join((*designs, *METHODS))
        raise not_found("strategy", given, f"There are: {known}. A strategy itself will do, too.")
    return StrategyToPredict(given, designs[given](domain))


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
        why = "no constants are used: the interval is a guess"
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


ESTIMATED = "compute is an estimate: give --step-seconds"


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


def answer_all(
    calibration: Calibration,
    asked: list[StrategyToPredict],
    engine: str | None,
    predictor: Simulator,
    accumulate: int = 1,
) -> list[GivenPrediction]:
    """engine: a system to charge in place of each method's own; None: its own. accumulate: batches
    whose gradients are added up before an update.

    Raises:
        InvalidInput: no constants are in use that tell an engine's time.
    """
    domain, fitted = calibration.domain, calibration.constants
    limit = iteration_limit(domain)
    bound = limit.seconds + (accumulate - 1) * limit.compute_seconds
    answers = []
    strategies = [each.strategy for each in asked]
    peaks = most_peak_bytes(domain, strategies)
    fitting = {*fitting_rows(domain, encode(strategies, domain)).tolist()}
    for place, each in enumerate(asked):
        spent = _engine_seconds(each.engine if engine is None else engine, fitted)
        found = _predicted(calibration, each.strategy, spent, predictor, accumulate)
        caveat = backend_of(domain.cluster).caveat(each.strategy, domain.cluster)
        answers.append(
            GivenPrediction(
                strategy=each.name,
                predicted_seconds=found.seconds,
                low_seconds=found.low_seconds,
                high_seconds=found.high_seconds,
                samples_per_second=(
                    accumulate * domain.batch_size * domain.world_size / found.seconds
                ),
                limit_seconds=bound,
                percent_of_limit=100.0 * bound / found.seconds,
                binding=found.binding,
                engine_seconds=spent,
                constants=calibration.name,
                predicted_peak_bytes=int(peaks[place]),
                fits=place in fitting,
                warnings=[*calibration.warnings, *((caveat,) if caveat else ())],
            )
        )
    return answers


@dataclass(frozen=True, slots=True)
class _Predicted:
    seconds: float
    low_seconds: float
    high_seconds: float
    binding: str


def _predicted(
    calibration: Calibration,
    strategy: Strategy,
    spent: float,
    predictor: Simulator,
    accumulate: int,
) -> _Predicted:
    """spent: by an engine on each message. How much longer the iteration is where messages are as
    slow as may be, and how much shorter, the timeline tells for every predictor."""
    alone = calibration.domain
    domain = replace(alone, cluster=with_engine(alone.cluster, spent)) if spent else alone
    population = encode([strategy], domain)
    seconds = float(predictor.predict(domain, population)[0])
    iteration = assumed_iteration(compile_plans_fast(population, domain), population, domain, 0)
    ends = (1.0, *_network_ratios(iteration, calibration.network))
    found, low, high = (
        float(accumulated_seconds(domain, population, np.array([seconds * end]), accumulate)[0])
        for end in ends
    )
    width = 1.0 + calibration.share
    return _Predicted(found, low / width, high * width, binding_of(iteration).resource)


def _network_ratios(
    iteration: AssumedIteration, factors: tuple[float, float]
) -> tuple[float, float]:
    """Of the iteration's seconds where messages take these multiples of theirs, over its own."""
    if factors == (1.0, 1.0):
        return factors
    own = iteration.seconds()
    low, high = (
        iteration.seconds(at_network_speed(iteration.inputs.costs, each)) / own
        for each in factors
    )
    return min(low, 1.0), max(high, 1.0)


def _engine_seconds(name: str, fitted: Constants | None) -> float:
    """Of one message under a system.

    Raises:
        InvalidInput: no constants are in use that tell it.
    """
    if name in ("", "none"):
        return 0.0
    known = fitted.engine_seconds if fitted is not None else {}
    if name not in known:
        raise InvalidInput(
            f"what engine {name!r} spends on a message was not fitted for this cluster.",
            thing="--engine",
            value=name,
            remedy=f"Known: {', '.join(known) or 'none'}. Give --engine none to leave it out, or "
            "--constants NAME (rtx-2080-ti) to take it from another cluster.",
        )
    return known[name]
