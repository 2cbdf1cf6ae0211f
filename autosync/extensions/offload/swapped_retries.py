"""Known designs that ran out of memory in their trials, once more with swapping.

A trial knows better than a prediction: a step that is recorded in a running job tells of modules
that own variables, and not of all that lies between them.
"""

from dataclasses import replace

from autosync.domain import Domain
from autosync.extensions.offload.document import Offload
from autosync.extensions.offload.swapped_designs import plain_name, swapped_forms
from autosync.population import encode
from autosync.search.loop.tuning_store import FOUND_BY_SEARCH, Candidate, Store
from autosync.search.space import Space
from autosync.simulator.memory.memory_check import most_peak_bytes
from autosync.simulator.simulator_contract import Simulator
from autosync.strategy import Strategy
from autosync.trials.contract import LACKS_ROOM, TrialResult


def retried_with_swap(
    domain: Domain, space: Space, simulator: Simulator, store: Store
) -> list[Candidate]:
    """The most promising first; none where nothing ran out of memory that can be swapped and was
    not yet. A design whose swapped form had no room either comes back in the form that holds least;
    one whose swapped form failed otherwise does not.
    """
    trials = {trial.key: trial for trial in store.trials()}
    stored = store.proposals()
    without_room = [
        proposal.candidate
        for proposal in stored
        if (trial := trials.get(proposal.key)) and _had_no_room(proposal.candidate, trial)
    ]
    named: dict[str, tuple[str, Strategy]] = {}
    for candidate in without_room:
        plain = candidate.strategy.without(Offload)
        named.setdefault(plain.id, (plain_name(candidate.origin), plain))
    known = {proposal.candidate.strategy.id for proposal in stored}
    failed = {candidate.strategy.id for candidate in without_room}
    found = []
    for forms in swapped_forms(list(named.values()), domain, space):
        left = [each for each in forms if each[1].id not in known]
        tried = {strategy.id for _, strategy in forms} & known
        if left and tried <= failed:
            found.append(_that_holds_least(left, domain) if tried else left[0])
    if not found:
        return []
    scores = simulator.predict(domain, encode([strategy for _, strategy in found], domain))
    candidates = [
        Candidate(replace(strategy, name=name), float(score), simulator.name, name)
        for (name, strategy), score in zip(found, scores, strict=True)
    ]
    return sorted(candidates, key=lambda each: each.predicted_seconds)


def _that_holds_least(forms: list[tuple[str, Strategy]], domain: Domain) -> tuple[str, Strategy]:
    """Where a form that waits less had no room; of equal ones the one that waits least."""
    swaps = [(strategy, strategy.swap) for _, strategy in forms]
    tight = [each.carrying(replace(swap, budget_bytes=1)) for each, swap in swaps if swap]
    peaks = most_peak_bytes(domain, tight)
    return forms[peaks.index(min(peaks))]


def _had_no_room(candidate: Candidate, trial: TrialResult) -> bool:
    """A known design, and its trial, on a device or in a budget that was too small."""
    if trial.error is None or candidate.origin in FOUND_BY_SEARCH:
        return False
    return trial.error.kind in LACKS_ROOM
