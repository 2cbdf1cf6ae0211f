"""What swapping costs the ranks of compiled plans."""

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.extensions.offload.swap_choice import Swap
from autosync.extensions.offload.swap_cost import RankSwap, host_link, rank_swap
from autosync.plan import PlanTable
from autosync.population import Population, encode
from autosync.simulator.cost.compute_time import compute_factors
from autosync.simulator.memory.peak_memory import DomainMemory, memory_of
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.strategy import Replica, Strategy


def swaps_of_ranks(
    memory: DomainMemory,
    plans: PlanTable,
    population: Population,
    index: int,
    swap: Swap,
) -> list[RankSwap]:
    """Of every rank under strategy `index`, if it swapped so.

    Raises:
        InvalidStrategy: a budget is less than the least that works.
    """
    (held,) = memory.moment_bytes(plans, population, [index])
    layout = population.layouts[population.layout[index]]
    return _rank_swaps(memory, held, layout, swap)


def slowdown_of(strategy: Strategy, domain: Domain) -> float:
    """`swap_slowdowns` of a strategy that is not compiled yet."""
    population = encode([strategy], domain)
    return swap_slowdown(domain, population, compile_plans_fast(population, domain), 0)


def swap_slowdown(domain: Domain, population: Population, plans: PlanTable, index: int) -> float:
    """`swap_slowdowns` of strategy `index` alone."""
    if not population.swap_bytes[index]:
        return 1.0
    return float(_slowdowns(domain, population, plans, [index])[index])


def swap_slowdowns(domain: Domain, population: Population, plans: PlanTable) -> NDArray[np.float64]:
    """`(strategies,)`: how many times longer the slowest rank's forward and backward pass take for
    waiting for transfers; 1 without swapping.

    Raises:
        InvalidStrategy: a budget is less than the least that works.
    """
    swapping = np.flatnonzero(population.swap_bytes).tolist()
    return _slowdowns(domain, population, plans, swapping)


def _slowdowns(
    domain: Domain, population: Population, plans: PlanTable, swapping: list[int]
) -> NDArray[np.float64]:
    slowdowns = np.ones(len(population))
    if not swapping:
        return slowdowns
    memory = memory_of(domain)
    moments = memory.moment_bytes(plans, population, swapping)
    for index, held in zip(swapping, moments, strict=True):
        swap = population.swap_of(index)
        assert swap is not None
        layout = population.layouts[population.layout[index]]
        ranks = _rank_swaps(memory, held, layout, swap)
        slowest = max(ranks, key=lambda rank: rank.compute_seconds + rank.stall_seconds)
        most = max(rank.compute_seconds for rank in ranks)
        if most:
            slowdowns[index] = (slowest.compute_seconds + slowest.stall_seconds) / most
    return slowdowns


def _rank_swaps(
    memory: DomainMemory,
    held: NDArray[np.float64],
    layout: tuple[Replica, ...],
    swap: Swap,
) -> list[RankSwap]:
    """held f64[world, 2n + 1]: of a strategy's `moment_bytes`."""
    domain = memory.domain
    factors = compute_factors(domain, layout)
    shares = {replica.rank: replica.share * domain.world_size for replica in layout}
    made: dict[tuple[object, ...], RankSwap] = {}
    found = []
    for rank, factor in enumerate(factors.tolist()):
        link = host_link(domain, rank)
        alike = (held[rank].tobytes(), shares[rank], factor, link)
        if alike not in made:
            spans = memory.idle_spans(shares[rank], swap)
            budget = float(swap.budget_bytes)
            made[alike] = rank_swap(domain, held[rank], spans, factor, budget, link)
        found.append(made[alike])
    return found
