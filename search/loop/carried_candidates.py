"""Strategies that were measured, carrying an entry of an extension, as candidates."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from autosync.errors import InvalidStrategy
from autosync.extensions.document import ExtensionDocument
from autosync.population import encode
from autosync.search.extension_proposals import ProposalRequest
from autosync.search.loop.tuning_store import Candidate
from autosync.strategy import Strategy


def carried_candidates(
    request: ProposalRequest,
    bases: Iterable[Strategy],
    entries: Sequence[ExtensionDocument],
    check: Callable[[Strategy], None],
    origin: str,
) -> list[Candidate]:
    """Each base with each entry that `check` lets it carry (it raises InvalidStrategy) and that was
    not tried, the fastest by prediction first. bases: those of the request that may carry one.
    origin: also the name of what is proposed."""
    simulator = request.simulator
    known = {strategy.id for strategy in request.tried}
    offered = [base.carrying(entry) for base in bases for entry in entries]
    new = [each for each in offered if each.id not in known and _passes(check, each)]
    if not new:
        return []
    seconds = simulator.predict(request.domain, encode(new, request.domain))
    found = [
        Candidate(replace(strategy, name=origin), float(each), simulator.name, origin)
        for strategy, each in zip(new, seconds, strict=True)
    ]
    return sorted(found, key=lambda each: each.predicted_seconds)


def _passes(check: Callable[[Strategy], None], strategy: Strategy) -> bool:
    try:
        check(strategy)
    except InvalidStrategy:
        return False
    return True
