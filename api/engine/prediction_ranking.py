"""The best strategies by prediction alone: nothing runs."""

from collections.abc import Callable

from autosync.domain import Domain
from autosync.search.loop.outcome import TuningEvent
from autosync.search.loop.tuning_store import Candidate
from autosync.search.space import Space
from autosync.simulator.simulator_contract import Simulator

SAMPLED = 64
"""Sampled strategies that are kept at most, chosen to be unlike each other."""


def best_by_prediction(
    domain: Domain,
    predictor: Simulator,
    proposals: int,
    seed: int,
    on_event: Callable[[TuningEvent], None],
    space: Space = Space(),  # noqa: B008  # frozen
) -> list[Candidate]:
    """Hand-designed candidates and unlike ones of the fastest sampled, fastest first; DDP is among
    them.

    on_event: told how far it is; what it raises ends the ranking.
    """
    from autosync.search.loop.proposing import known_designs, sampled  # loads numba
    from autosync.search.loop.settings import Settings

    settings = Settings(proposals=proposals, seed=seed, acquisition="prediction")
    known = known_designs(domain, space, predictor)
    seen = [candidate.strategy for candidate in known]
    drawn = sampled(domain, space, predictor, settings, 0, SAMPLED, seen, on_event)
    return sorted(known + drawn, key=lambda candidate: candidate.predicted_seconds)
