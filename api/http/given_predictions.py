"""What given strategies take on a cluster one need not have: seconds, an interval, and what both
rest on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from autosync.api.db.lookup import not_found
from autosync.api.engine.prediction_work import check_work
from autosync.api.engine.service_limits import ServiceLimits
from autosync.api.http.named_documents import domain_named
from autosync.api.prediction_spec import PredictSpec
from autosync.api.views.prediction_ranges import (
    BY_CLASS,
    Calibration,
    PredictedRange,
    calibrate,
    compute_is_known,
    predicted_ranges,
)
from autosync.api.views.schemas import GivenPrediction, GivenPredictions
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.population import encode
from autosync.simulator.cost.applied_constants import with_engine
from autosync.simulator.cost.class_constants import FITTED, MEASURED
from autosync.simulator.cost.fitted_constants import Constants
from autosync.simulator.limit import iteration_limit
from autosync.simulator.memory.memory_check import fitting_rows, most_peak_bytes
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.simulator_contract import Simulator
from autosync.strategy import Strategy
from autosync.verification import verify


@dataclass(frozen=True, slots=True)
class StrategyToPredict:
    """A strategy to predict. engine: the system whose time a message it pays, or none."""

    name: str
    strategy: Strategy
    engine: str = ""


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
    calibration = calibrate(alone, body.constants, compute_is_known(alone, body))
    domain, fitted = calibration.domain, calibration.constants
    predictor = simulator_of(session, body.simulator)
    if not body.strategies:
        check_work([domain], predictor, 0, limits)
    asked = strategies_to_predict(domain, body.strategies)
    by_class = calibration.name == BY_CLASS
    return GivenPredictions(
        constants=calibration.name,
        constants_fitted=fitted.fitted if fitted else FITTED if by_class else "",
        constants_measured=fitted.measured if fitted else MEASURED if by_class else "",
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
    samples = domain.accumulate * domain.batch_size * domain.world_size
    answers = []
    strategies = [each.strategy for each in asked]
    peaks = most_peak_bytes(domain, strategies)
    fitting = {*fitting_rows(domain, encode(strategies, domain)).tolist()}
    for place, each in enumerate(asked):
        spent = _engine_seconds(each.engine if engine is None else engine, fitted)
        around = _predicted(calibration, each.strategy, spent, predictor)
        answers.append(
            GivenPrediction(
                strategy=each.name,
                predicted_seconds=around.seconds,
                low_seconds=around.low_seconds,
                high_seconds=around.high_seconds,
                samples_per_second=samples / around.seconds,
                limit_seconds=bound,
                percent_of_limit=100.0 * bound / around.seconds,
                binding=around.binding,
                engine_seconds=spent,
                constants=calibration.name,
                predicted_peak_bytes=int(peaks[place]),
                fits=place in fitting,
                warnings=list(calibration.warnings),
            )
        )
    return answers


def _predicted(
    calibration: Calibration, strategy: Strategy, spent: float, predictor: Simulator
) -> PredictedRange:
    """spent: by an engine on each message."""
    alone = calibration.domain
    domain = replace(alone, cluster=with_engine(alone.cluster, spent)) if spent else alone
    population = encode([strategy], domain)
    plans = compile_plans_fast(population, domain)
    seconds = predictor.predict(domain, population).tolist()
    return predicted_ranges(calibration, domain, population, plans, seconds)[0]


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
