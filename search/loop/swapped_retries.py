"""Known designs that ran out of memory in their trials, once more with swapping.

A trial knows better than a prediction: a step that is recorded in a running job tells of modules
that own variables, and not of all that lies between them.
"""

from dataclasses import replace

from autosync.domain import Domain
from autosync.population import encode
from autosync.search.designs.swapped_designs import within_budget
from autosync.search.loop.tuning_store import FOUND_BY_SEARCH, Candidate, Store
from autosync.simulator.simulator_contract import Simulator


def retried_with_swap(domain: Domain, simulator: Simulator, store: Store) -> list[Candidate]:
    """The most promising first; none where nothing ran out of memory that can be swapped and was
    not yet."""
    full = {t.key for t in store.trials() if t.error and t.error.kind == "out_of_memory"}
    stored = store.proposals()
    known = {proposal.candidate.strategy.id for proposal in stored}
    failed = [each.candidate for each in stored if each.key in full]
    named = [
        (each.origin, each.strategy)
        for each in failed
        if each.strategy.swap is None and each.origin not in FOUND_BY_SEARCH
    ]
    found = [each for each in within_budget(named, domain) if each[1].id not in known]
    if not found:
        return []
    scores = simulator.predict(domain, encode([strategy for _, strategy in found], domain))
    candidates = [
        Candidate(replace(strategy, name=name), float(score), simulator.name, name)
        for (name, strategy), score in zip(found, scores, strict=True)
    ]
    return sorted(candidates, key=lambda each: each.predicted_seconds)
