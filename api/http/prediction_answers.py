"""What predictions are answered with."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from autosync.api.http.prediction_bodies import (
    CompareBody,
    PredictionBody,
    RankBody,
    RentedCluster,
    domain_named,
    ranked_domain,
)
from autosync.api.http.schemas import (
    ComparedCluster,
    ComparedClusters,
    PredictedStrategies,
    PredictedStrategy,
)
from autosync.domain import Domain
from autosync.errors import NotSupported
from autosync.search.space import Space
from autosync.strategy_description import describe

if TYPE_CHECKING:
    from autosync.search.loop.outcome import TuningEvent
    from autosync.search.loop.tuning_store import Candidate

LONGEST_SECONDS = 60.0
"""Of the sampling of one request; the rest takes one or two more."""


def predicted_strategies(session: Session, body: RankBody) -> PredictedStrategies:
    """
    Raises:
        NotFound, InvalidInput: as `ranked_domain`. NotSupported: it takes too long.
    """
    from autosync.simulator.limit import iteration_limit  # loads numba: only when asked for
    from autosync.simulator.memory_check import most_peak_bytes

    domain = ranked_domain(session, body)
    ranked, ddp = _ranked(session, body, domain, body.space, time.monotonic() + LONGEST_SECONDS)
    shown = ranked[: body.top]
    peaks = most_peak_bytes(domain, [candidate.strategy for candidate in shown])
    items = [
        PredictedStrategy(
            rank=rank,
            words=describe(candidate.strategy, domain),
            origin=candidate.origin,
            predicted_seconds=candidate.predicted_seconds,
            predicted_speedup=ddp.predicted_seconds / candidate.predicted_seconds,
            predicted_peak_bytes=int(peak),
            strategy_id=candidate.strategy.id,
            strategy=candidate.strategy,
        )
        for rank, (candidate, peak) in enumerate(zip(shown, peaks, strict=True), 1)
    ]
    return PredictedStrategies(
        domain_id=domain.id,
        simulator=ddp.simulator,
        proposals=body.proposals,
        ddp_seconds=ddp.predicted_seconds,
        limit_seconds=iteration_limit(domain, body.space).seconds,
        items=items,
    )


def compared_clusters(session: Session, body: CompareBody) -> ComparedClusters:
    """
    Raises:
        NotFound, InvalidInput: as `domain_named`. NotSupported: it takes too long.
    """
    until = time.monotonic() + LONGEST_SECONDS
    items = [_compared(session, body, rented, until) for rented in body.clusters]
    if all(item.cost_per_million_samples is not None for item in items):
        items.sort(key=lambda item: item.cost_per_million_samples or 0.0)
    else:
        items.sort(key=lambda item: -item.samples_per_second)
    return ComparedClusters(graph=body.graph, simulator=body.simulator, items=items)


def _compared(
    session: Session, body: CompareBody, rented: RentedCluster, until: float
) -> ComparedCluster:
    domain = domain_named(session, body, rented.cluster)
    ranked, ddp = _ranked(session, body, domain, Space(), until)
    best = ranked[0]
    rate = domain.batch_size * domain.world_size / best.predicted_seconds
    cost = rented.cost_per_hour
    return ComparedCluster(
        cluster=domain.cluster.name,
        world_size=domain.world_size,
        predicted_seconds=best.predicted_seconds,
        ddp_seconds=ddp.predicted_seconds,
        words=describe(best.strategy, domain),
        samples_per_second=rate,
        cost_per_million_samples=None if cost is None else cost / 3600.0 * 1e6 / rate,
    )


def _ranked(
    session: Session, body: PredictionBody, domain: Domain, space: Space, until: float
) -> "tuple[list[Candidate], Candidate]":
    """The candidates, the fastest first, and DDP."""
    from autosync.api.engine.prediction_ranking import best_by_prediction
    from autosync.api.engine.simulator_store import resolved_name, simulator_of
    from autosync.search.loop.outcome import DDP

    predictor = simulator_of(session, resolved_name(session, body.simulator, domain), domain)
    stop = _stops_at(until, body.proposals)
    ranked = best_by_prediction(domain, predictor, body.proposals, body.seed, stop, space)
    return ranked, next(candidate for candidate in ranked if candidate.origin == DDP)


def _stops_at(until: float, proposals: int) -> "Callable[[TuningEvent], None]":
    def check(event: "TuningEvent") -> None:
        if time.monotonic() > until:
            raise NotSupported(
                f"{event.done} of {event.total} proposals took longer than {LONGEST_SECONDS:g} s.",
                thing="proposals",
                value=proposals,
                remedy="Ask for fewer, or start a tuning (POST /v1/tunings), which has the time.",
            )

    return check
