"""What a placement changes in what travels, module by module, and in words."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.extensions.placement.document import PlacedModule
from autosync.extensions.placement.module_borders import deals_of, moved_shares
from autosync.profiling import reach_variables
from autosync.strategy import Strategy

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PlacedAccount:
    """world_size: of the cluster. variable_bytes: of the module's values.

    unsent_bytes: of gradients, an iteration and over all links: a ring all-reduce of B bytes among
    n ranks sends 2 (n - 1) B (Patarasu and Yuan 2009), which the module's own ranks alone now do.
    dealt_bytes: of samples and their gradients that go from one rank to another, an iteration.
    """

    placed: PlacedModule
    world_size: int
    variable_bytes: int
    unsent_bytes: int
    dealt_bytes: int

    def __str__(self) -> str:
        ranks = self.placed.ranks
        where = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        if len(ranks) == self.world_size:
            where = "all ranks"
        if max(self.placed.shares) - min(self.placed.shares) > 1e-6:
            where += f" by {', '.join(f'{share:.0%}' for share in self.placed.shares)}"
        travel = [f"{_size(self.dealt_bytes)} of samples and their gradients are dealt"]
        if self.unsent_bytes:
            travel.insert(0, f"{_size(self.unsent_bytes)} of gradients no longer travel")
        return (
            f"{self.placed.module} ({_size(self.variable_bytes)} of variables) on {where}: "
            f"{', '.join(travel)} an iteration"
        )


def placement_accounts(domain: Domain, strategy: Strategy) -> tuple[PlacedAccount, ...]:
    """Of each placed module, in the strategy's order."""
    world = domain.world_size
    replicas = np.zeros(world)
    for replica in strategy.replicas:
        replicas[replica.rank] = replica.share
    trained = reach_variables(domain.graph)
    found = []
    for placed in strategy.placement:
        borders = domain.borders.of(placed.module)
        own = np.zeros(world)
        own[list(placed.ranks)] = placed.shares
        inward, outward = _moved(replicas, own), _moved(own, replicas)
        dealt = sum(
            (inward if deal.inward else outward) * deal.size_bytes * world
            for deal in deals_of(domain.graph, borders, trained)
        )
        size = sum(domain.graph.variables[index].size_bytes for index in borders.variables)
        unsent = 2 * (world - len(placed.ranks)) * size
        found.append(PlacedAccount(placed, world, size, unsent, round(dealt)))
    return tuple(found)


def _moved(source: F64, target: F64) -> float:
    """The share of the batch that changes ranks."""
    shares = moved_shares(source, target)
    return float(shares.sum() - np.trace(shares))


def placement_words(accounts: Sequence[PlacedAccount], most: int = 8) -> list[str]:
    """A sentence a module, those with the most bytes first; the rest together."""
    by_bytes = sorted(accounts, key=lambda each: -each.variable_bytes)
    words = [str(each) for each in by_bytes[:most]]
    if rest := by_bytes[most:]:
        unsent, dealt = sum(e.unsent_bytes for e in rest), sum(e.dealt_bytes for e in rest)
        words.append(
            f"{len(rest)} more: {_size(unsent)} of gradients no longer travel, {_size(dealt)} are "
            "dealt an iteration"
        )
    return words


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1e3:,.1f} kB"
