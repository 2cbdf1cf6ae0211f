"""Strategies that fit the devices' memory only where something is swapped to host memory: designs
by prediction, and known designs whose trials ran out of memory.

A trial is more exact than a prediction: what is recorded of a running job's step are modules that
own variables, and not all that lies between them.
"""

from dataclasses import replace

from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.extensions.offload.document import Offload, forms_within
from autosync.extensions.offload.prediction import swap_budget_bytes
from autosync.extensions.offload.verification import check_strategy
from autosync.population import encode
from autosync.search.extension_proposals import Named, Proposer
from autosync.search.loop.predicted_candidates import predicted_candidates
from autosync.search.loop.tuning_store import FOUND_BY_SEARCH, Candidate, Store
from autosync.search.space import Space
from autosync.simulator.extension_prediction import slowdowns
from autosync.simulator.memory.memory_check import fitting_rows
from autosync.simulator.memory.peak_memory import memory_of
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.simulator_contract import Simulator
from autosync.strategy import Strategy
from autosync.trials.contract import LACKS_MEMORY, TrialResult

ENDINGS = {False: "_swapped", True: "_swapped_with_state"}
"""Of names of designs, by whether optimizer state is swapped beside activations."""


class OffloadProposer(Proposer):
    def lies_in(self, strategy: Strategy, space: Space) -> bool:
        return space.swapping

    def fitting_forms(self, domain: Domain, named: Named, space: Space) -> Named:
        """Of designs by their names, those that need swapping to fit, each in the form that waits
        least; none where everything fits, or where nothing can be swapped (`swapped_forms`)."""
        if not named or not space.swapping or swap_budget_bytes(domain) is None:
            return []
        fitting = {*fitting_rows(domain, encode([each for _, each in named], domain)).tolist()}
        too_large = [each for row, each in enumerate(named) if row not in fitting]
        return [forms[0] for forms in swapped_forms(too_large, domain, space) if forms]

    def retries(
        self, domain: Domain, space: Space, simulator: Simulator, store: Store
    ) -> list[Candidate]:
        """The most promising first; none where nothing ran out of memory that can be swapped and
        was not yet. A design whose swapped form had no room either comes back in its other one;
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
                found.append(left[0])
        due = [(name, replace(strategy, name=name)) for name, strategy in found]
        candidates = predicted_candidates(domain, simulator, due)
        return sorted(candidates, key=lambda each: each.predicted_seconds)


PROPOSER = OffloadProposer()


def swapped_forms(named: Named, domain: Domain, space: Space) -> list[list[tuple[str, Strategy]]]:
    """Of each design those that swap within the budget of the domain's devices and for which it
    holds a step: activations alone, or optimizer state too. The shorter its waits, the earlier.

    All empty where the space does not allow it, or `swap_budget_bytes` knows no budget.
    """
    budget = swap_budget_bytes(domain)
    if budget is None or not space.swapping:
        return [[] for _ in named]
    made = [
        (design, f"{name}{ENDINGS[swap.optimizer_state]}", swapped)
        for design, (name, strategy) in enumerate(named)
        for swap in forms_within(budget)
        if domain.optimizer.state_tensors or not swap.optimizer_state
        if _can_swap(swapped := strategy.carrying(swap))
    ]
    waits = _slowdowns(domain, [strategy for _, _, strategy in made])
    order = sorted(waits, key=waits.__getitem__)
    found: list[list[tuple[str, Strategy]]] = [[] for _ in named]
    for place in order:
        design, name, strategy = made[place]
        found[design].append((name, strategy))
    return found


def plain_name(name: str) -> str:
    """Of a design in one of its swapped forms."""
    for ending in ENDINGS.values():
        name = name.removesuffix(ending)
    return name


def _slowdowns(domain: Domain, strategies: list[Strategy]) -> dict[int, float]:
    """By the place of each strategy for whose step its budget is enough."""
    if not strategies:
        return {}
    population = encode(strategies, domain)
    plans = compile_plans_fast(population, domain)
    peaks = memory_of(domain).peak_bytes(plans, population).max(axis=1)
    swaps = [strategy.extension(Offload) for strategy in strategies]
    both = enumerate(zip(peaks.tolist(), swaps, strict=True))
    holds = [place for place, (peak, swap) in both if swap and peak <= swap.budget_bytes]
    of_those = population.take(holds)
    waits = slowdowns(domain, of_those, compile_plans_fast(of_those, domain))
    return dict(zip(holds, waits.tolist(), strict=True))


def _can_swap(strategy: Strategy) -> bool:
    try:
        check_strategy(strategy)
    except InvalidStrategy:
        return False
    return True


def _had_no_room(candidate: Candidate, trial: TrialResult) -> bool:
    """A known design, and its trial, on a device or in a budget that was too small."""
    if trial.error is None or candidate.origin in FOUND_BY_SEARCH:
        return False
    return trial.error.kind in LACKS_MEMORY
