"""What predictions are answered with."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from autosync.api.engine.prediction_work import check_work
from autosync.api.engine.service_limits import ServiceLimits
from autosync.api.http.named_documents import domain_named, ranked_domain
from autosync.api.prediction_spec import CompareSpec, PredictionSpec, RankSpec, RentedCluster
from autosync.api.views.schemas import (
    ComparedCluster,
    ComparedClusters,
    LeftOutCluster,
    PredictedStrategies,
    PredictedStrategy,
)
from autosync.domain import Domain
from autosync.errors import InvalidInput, NotSupported
from autosync.population import encode
from autosync.search.space import Space
from autosync.simulator.simulator_contract import Simulator
from autosync.strategy_description import describe

if TYPE_CHECKING:
    from autosync.api.views.prediction_ranges import Calibration, PredictedRange
    from autosync.search.loop.outcome import TuningEvent
    from autosync.search.loop.tuning_store import Candidate


SAMPLING_SHARE = 0.5
"""Of the seconds of a prediction; the rest is for ranking what was sampled."""


class TimeLimit:
    """Of the sampling of one request, and of its search for placements beside it; the rest takes
    one or two seconds more. placements_cut: it ended before all placements were looked at."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic):
        self.seconds = seconds
        self._clock = clock
        self._until = clock() + seconds
        self.placements_cut = False

    def is_over(self) -> bool:
        return self._clock() > self._until

    def stop_placing(self) -> bool:
        """Asked where there are more placements to look at."""
        self.placements_cut = self.placements_cut or self.is_over()
        return self.placements_cut


def predicted_strategies(
    session: Session, body: RankSpec, limit: TimeLimit, limits: ServiceLimits
) -> PredictedStrategies:
    """
    Raises:
        NotFound, InvalidInput: as `ranked_domain` and `check_work`. NotSupported: it takes too
            long.
    """
    from autosync.api.engine.simulator_store import simulator_of
    from autosync.api.views.prediction_ranges import (  # loads numba: only when asked for
        calibrate,
        compute_is_known,
    )
    from autosync.extensions.placement.proposals import can_be_placed
    from autosync.simulator.limit import iteration_limit

    alone = ranked_domain(session, body)
    predictor = simulator_of(session, body.simulator)
    check_work([alone], predictor, body.proposals, limits)
    calibration = calibrate(alone, "auto", compute_is_known(alone, body))
    domain = calibration.domain
    warnings = list(calibration.warnings)
    if body.space.placement and not can_be_placed(domain, body.space):
        warnings.append("no modules are placed: that takes all-reduces, and a cluster on gloo")
    ranked, ddp = _ranked(body, domain, body.space, predictor, limit)
    shown = ranked[: body.top]
    (*ranges, ddp_range), peaks = _ranges(calibration, [*shown, ddp])
    items = [
        PredictedStrategy(
            rank=rank,
            words=describe(candidate.strategy, domain),
            origin=candidate.origin,
            predicted_seconds=around.seconds,
            low_seconds=around.low_seconds,
            high_seconds=around.high_seconds,
            binding=around.binding,
            predicted_speedup=ddp_range.seconds / around.seconds,
            predicted_peak_bytes=int(peak),
            strategy_id=candidate.strategy.id,
            strategy=candidate.strategy,
        )
        for rank, (candidate, peak, around) in enumerate(
            zip(shown, peaks[:-1], ranges, strict=True), 1
        )
    ]
    return PredictedStrategies(
        domain_id=alone.id,
        simulator=ddp.simulator,
        proposals=body.proposals,
        ddp_seconds=ddp_range.seconds,
        limit_seconds=iteration_limit(domain, body.space).seconds,
        constants=calibration.name,
        warnings=warnings,
        placements_cut=limit.placements_cut,
        items=items,
    )


def compared_clusters(
    session: Session, body: CompareSpec, limit: TimeLimit, limits: ServiceLimits
) -> ComparedClusters:
    """
    Raises:
        NotFound, InvalidInput: as `domain_named` and `check_work`; or none holds the model.
        NotSupported: it takes too long.
    """
    from autosync.api.engine.simulator_store import simulator_of

    predictor = simulator_of(session, body.simulator)
    domains = [domain_named(session, body, rented.cluster) for rented in body.clusters]
    check_work(domains, predictor, body.proposals, limits)
    items: list[ComparedCluster] = []
    left_out: list[LeftOutCluster] = []
    for domain, rented in zip(domains, body.clusters, strict=True):
        try:
            items.append(_compared(body, domain, rented, predictor, limit))
        except InvalidInput as error:
            if error.thing != "memory" or len(left_out) == len(domains) - 1:
                raise
            left_out.append(LeftOutCluster(requested=rented.cluster, reason=error.message))
    if all(item.cost_per_million_samples is not None for item in items):
        items.sort(key=lambda item: item.cost_per_million_samples or 0.0)
    else:
        items.sort(key=lambda item: -item.samples_per_second)
    return ComparedClusters(
        graph=body.graph, simulator=body.simulator, items=items, left_out=left_out
    )


def _compared(
    body: CompareSpec,
    domain: Domain,
    rented: RentedCluster,
    predictor: Simulator,
    limit: TimeLimit,
) -> ComparedCluster:
    from autosync.api.views.prediction_ranges import calibrate, compute_is_known

    calibration = calibrate(domain, "auto", compute_is_known(domain, body))
    ranked, ddp = _ranked(body, calibration.domain, Space(), predictor, limit)
    best = ranked[0]
    (around, ddp_range), _ = _ranges(calibration, [best, ddp])
    rate = domain.accumulate * domain.batch_size * domain.world_size / around.seconds
    cost = rented.cost_per_hour
    return ComparedCluster(
        cluster=domain.cluster.name,
        requested=rented.cluster,
        world_size=domain.world_size,
        predicted_seconds=around.seconds,
        low_seconds=around.low_seconds,
        high_seconds=around.high_seconds,
        binding=around.binding,
        ddp_seconds=ddp_range.seconds,
        words=describe(best.strategy, domain),
        samples_per_second=rate,
        cost_per_million_samples=None if cost is None else cost / 3600.0 * 1e6 / rate,
        warnings=list(calibration.warnings),
    )


def _ranges(
    calibration: "Calibration", candidates: "Sequence[Candidate]"
) -> "tuple[list[PredictedRange], list[float]]":
    """Around the predicted seconds of each, and the peak bytes of its rank that needs most."""
    from autosync.api.views.prediction_ranges import predicted_ranges
    from autosync.simulator.memory.peak_memory import memory_of
    from autosync.simulator.numba_compiler import compile_plans_fast

    domain = calibration.domain
    population = encode([candidate.strategy for candidate in candidates], domain)
    plans = compile_plans_fast(population, domain)
    seconds = [candidate.predicted_seconds for candidate in candidates]
    ranges = predicted_ranges(calibration, domain, population, plans, seconds)
    return ranges, memory_of(domain).peak_bytes(plans, population).max(axis=1).tolist()


def _ranked(
    body: PredictionSpec, domain: Domain, space: Space, predictor: Simulator, limit: TimeLimit
) -> "tuple[list[Candidate], Candidate]":
    """The candidates, the fastest first, and DDP.

    Raises:
        InvalidInput: no strategy fits the devices' memory. NotSupported: it takes too long.
    """
    from autosync.api.engine.prediction_ranking import best_by_prediction
    from autosync.search.loop.outcome import DDP

    stop = _stops_at(limit, body.proposals)
    try:
        ranked = best_by_prediction(
            domain, predictor, body.proposals, body.seed, stop, space, limit.stop_placing
        )
    except InvalidInput as error:
        if not limit.placements_cut:
            raise
        raise NotSupported(
            f"no strategy without placements fits the devices' memory, and {limit.seconds:g} s "
            "have found no placement that does.",
            thing="space.placement",
            value=True,
            remedy="Start a tuning (POST /v1/tunings), which has the time, or take larger devices.",
        ) from error
    return ranked, next(candidate for candidate in ranked if candidate.origin == DDP)


def _stops_at(limit: TimeLimit, proposals: int) -> "Callable[[TuningEvent], None]":
    def check(event: "TuningEvent") -> None:
        if limit.is_over():
            raise NotSupported(
                f"{event.done} of {event.total} proposals took longer than {limit.seconds:g} s.",
                thing="proposals",
                value=proposals,
                remedy="Ask for fewer, or start a tuning (POST /v1/tunings), which has the time.",
            )

    return check
