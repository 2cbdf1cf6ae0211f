"""Strategies as candidates, with what a simulator predicts of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.extensions.document import ExtensionDocument
from autosync.population import encode
from autosync.search.extension_proposals import ProposalRequest
from autosync.search.loop.tuning_store import Candidate, Origin
from autosync.simulator.simulator_contract import Simulator
from autosync.strategy import Strategy


def predicted_candidates(
    domain: Domain, simulator: Simulator, named: Sequence[tuple[str, Strategy]]
) -> list[Candidate]:
    """In their order. named: origins with their strategies; may be empty."""
    if not named:
        return []
    seconds = simulator.predict(domain, encode([strategy for _, strategy in named], domain))
    return [
        Candidate(strategy, float(each), simulator.name, origin)
        for (origin, strategy), each in zip(named, seconds, strict=True)
    ]


def carried_candidates(
    request: ProposalRequest,
    bases: Iterable[Strategy],
    entries: Sequence[ExtensionDocument],
    check: Callable[[Strategy], None],
    origin: Origin,
) -> list[Candidate]:
    """Each base with each entry that `check` lets it carry (it raises InvalidStrategy) and that was
    not tried, the fastest by prediction first. bases: those of the request that may carry one.
    origin: also the name of what is proposed."""
    known = {strategy.id for strategy in request.tried}
    offered = [base.carrying(entry) for base in bases for entry in entries]
    new = [
        (origin, replace(each, name=origin))
        for each in offered
        if each.id not in known and _passes(check, each)
    ]
    found = predicted_candidates(request.domain, request.simulator, new)
    return sorted(found, key=lambda each: each.predicted_seconds)


def _passes(check: Callable[[Strategy], None], strategy: Strategy) -> bool:
    try:
        check(strategy)
    except InvalidStrategy:
        return False
    return True
