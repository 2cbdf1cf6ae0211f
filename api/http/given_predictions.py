"""What given strategies take on a cluster one need not have: seconds, an interval, and what both
rest on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from autosync.api.db.lookup import not_found
from autosync.api.engine.prediction_work import check_work
from autosync.api.engine.service_limits import ServiceLimits
from autosync.api.http.named_documents import domain_named
from autosync.api.spec import PredictSpec
from autosync.api.views.schemas import GivenPrediction, GivenPredictions
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.population import encode
from autosync.simulator.backends import backend_of
from autosync.simulator.cost.applied_constants import (
    CONNECTION_RANGE_GBPS,
    connection_limits,
    extrapolations,
    interval_share,
    with_borrowed_constants,
    with_engine,
    with_replication_costs,
)
from autosync.simulator.cost.fitted_constants import Constants, constants_of, load_constants
from autosync.simulator.limit import iteration_limit
from autosync.simulator.memory.memory_check import fitting_rows, most_peak_bytes
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


@dataclass(frozen=True, slots=True)
class Calibration:
    """The domain with what its constants add. share: relative half-width of intervals.
    connections: at which rates of a TCP connection to predict the ends of the interval, too."""

    domain: Domain
    constants: Constants | None
    share: float
    warnings: tuple[str, ...]
    connections: tuple[float, ...] = ()


def given_predictions(
    session: Session, body: PredictSpec, limits: ServiceLimits
) -> GivenPredictions:
    """
    Raises:
        NotFound: no such graph, cluster, strategy, simulator or constants.
        InvalidInput, InvalidStrategy, NotSupported: a strategy does not apply to the domain, or
            nobody has fitted its engine; says why. InvalidInput as `check_work`, too.
    """
    from autosync.api.engine.simulator_store import simulator_of

    alone = domain_named(session, body, body.cluster, body.profile)
    known = body.compute_is_known or alone.compute_source == "measured"
    calibration = calibrate(alone, body.constants, known)
    domain, fitted = calibration.domain, calibration.constants
    predictor = simulator_of(session, body.simulator)
    if not body.strategies:
        check_work(domain, predictor, 0, limits)
    asked = strategies_to_predict(domain, body.strategies)
    return GivenPredictions(
        constants=fitted.name if fitted else None,
        constants_fitted=fitted.fitted if fitted else "",
        constants_measured=fitted.measured if fitted else "",
        items=answer_all(calibration, asked, body.engine, predictor),
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

    name: `auto` for those that belong to the cluster, or for any other NCCL cluster to
    those that its backend borrows; `none`.

    Raises:
        NotFound: there are no constants of that name.
    """
    own = constants_of(alone.cluster)
    constants = own if name in ("auto", "none") else load_constants(name)
    borrowed = backend_of(alone.cluster).borrowed_constants
    if name == "auto" and own is None and borrowed:
        constants = load_constants(borrowed)
    if name == "none" or constants is None:
        why = "no constants are used: the interval is a guess"
        return Calibration(alone, None, UNKNOWN_SHARE, (why,))
    beyond = extrapolations(alone, constants)
    warnings = [f"beyond what was measured: {each.why}" for each in beyond]
    domain = alone
    connections: tuple[float, ...] = ()
    if own != constants:
        warnings.append(f"nothing was fitted on {alone.cluster.name}: constants of another cluster")
        if borrowed:
            domain = replace(alone, cluster=with_borrowed_constants(alone.cluster, constants))
            connections = CONNECTION_RANGE_GBPS if connection_limits(alone.cluster) else ()
    if not compute_is_known:
        warnings.append("compute is an estimate: give --step-seconds")
    share = interval_share(constants, beyond, compute_is_known)
    domain = with_replication_costs(domain, constants)
    return Calibration(domain, constants, share, tuple(warnings), connections)


def answer_all(
    calibration: Calibration,
    asked: list[StrategyToPredict],
    engine: str | None,
    predictor: Simulator,
) -> list[GivenPrediction]:
    """engine: a system to charge in place of each method's own; None: its own.

    Raises:
        InvalidInput: no constants are in use that tell an engine's time.
    """
    domain, fitted = calibration.domain, calibration.constants
    bound = iteration_limit(domain).seconds
    answers = []
    strategies = [each.strategy for each in asked]
    peaks = most_peak_bytes(domain, strategies)
    fitting = {*fitting_rows(domain, encode(strategies, domain)).tolist()}
    for place, each in enumerate(asked):
        spent = _engine_seconds(each.engine if engine is None else engine, fitted)
        seconds = _seconds(domain, each.strategy, spent, predictor)
        ends = [seconds, *_at_connections(calibration, each.strategy, spent, predictor)]
        caveat = backend_of(domain.cluster).caveat(each.strategy, domain.cluster)
        answers.append(
            GivenPrediction(
                strategy=each.name,
                predicted_seconds=seconds,
                low_seconds=min(ends) / (1.0 + calibration.share),
                high_seconds=max(ends) * (1.0 + calibration.share),
                samples_per_second=domain.batch_size * domain.world_size / seconds,
                limit_seconds=bound,
                percent_of_limit=100.0 * bound / seconds,
                engine_seconds=spent,
                constants=fitted.name if fitted else None,
                predicted_peak_bytes=int(peaks[place]),
                fits=place in fitting,
                warnings=[*calibration.warnings, *((caveat,) if caveat else ())],
            )
        )
    return answers


def _seconds(domain: Domain, strategy: Strategy, spent: float, predictor: Simulator) -> float:
    under = replace(domain, cluster=with_engine(domain.cluster, spent)) if spent else domain
    return float(predictor.predict(under, encode([strategy], under))[0])


def _at_connections(
    calibration: Calibration, strategy: Strategy, spent: float, predictor: Simulator
) -> Iterator[float]:
    """Seconds at each rate that a connection may have."""
    domain = calibration.domain
    for rate in calibration.connections:
        cluster = replace(domain.cluster, connection_gbps=rate)
        yield _seconds(replace(domain, cluster=cluster), strategy, spent, predictor)


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
