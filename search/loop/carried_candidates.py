"""Strategies that were measured, carrying an entry of an extension, as candidates."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.extensions.document import ExtensionDocument
from autosync.population import encode
from autosync.search.loop.tuning_store import Candidate
from autosync.simulator.simulator_contract import Simulator
from autosync.strategy import Strategy


def carried_candidates(
    domain: Domain,
    simulator: Simulator,
    bases: Iterable[Strategy],
    entries: Sequence[ExtensionDocument],
    check: Callable[[Strategy], None],
    tried: Sequence[Strategy],
    origin: str,
) -> list[Candidate]:
    """Each base with each entry that `check` lets it carry (it raises InvalidStrategy) and that was
    not tried, the fastest by prediction first. origin: also the name of what is proposed."""
    known = {strategy.id for strategy in tried}
    offered = [base.carrying(entry) for base in bases for entry in entries]
    new = [each for each in offered if each.id not in known and _passes(check, each)]
    if not new:
        return []
    seconds = simulator.predict(domain, encode(new, domain))
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
