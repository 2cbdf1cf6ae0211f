"""Designs that fit the devices' memory only with activations swapped to host memory."""

from collections.abc import Sequence
from dataclasses import replace

from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.population import encode
from autosync.simulator.memory_check import fitting_rows
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.peak_memory import memory_of
from autosync.simulator.swap_budget import swap_budget_bytes
from autosync.strategy import Strategy
from autosync.swap_schedule.swap_choice import Swap
from autosync.verification import check_swap

Named = Sequence[tuple[str, Strategy]]


def swapped_where_needed(domain: Domain, named: Named) -> list[tuple[str, Strategy]]:
    """Of designs by their names, those that need swapping to fit, with it; none where everything
    fits, or where nothing can be swapped (`swap_budget_bytes`)."""
    if not named or swap_budget_bytes(domain) is None:
        return []
    fitting = {*fitting_rows(domain, encode([each for _, each in named], domain)).tolist()}
    return within_budget([each for row, each in enumerate(named) if row not in fitting], domain)


def within_budget(named: Named, domain: Domain) -> list[tuple[str, Strategy]]:
    """Swapped within the budget of the domain's devices, those for which it holds a step."""
    budget = swap_budget_bytes(domain)
    if budget is None:
        return []
    swapped = [
        (f"{name}_swapped", replace(strategy, swap=Swap(budget)))
        for name, strategy in named
        if _can_swap(replace(strategy, swap=Swap(budget)))
    ]
    if not swapped:
        return []
    population = encode([strategy for _, strategy in swapped], domain)
    peaks = memory_of(domain).peak_bytes(compile_plans_fast(population, domain), population)
    return [each for each, peak in zip(swapped, peaks, strict=True) if peak.max() <= budget]


def _can_swap(strategy: Strategy) -> bool:
    try:
        check_swap(strategy)
    except InvalidStrategy:
        return False
    return True
