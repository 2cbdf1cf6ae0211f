"""Where a module of the model lives: on which ranks, and which share of the global batch each
computes (HeteroG, Yi et al. 2020, sections 3.3 and 4.1.2)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum
from typing import ClassVar

from pydantic import ConfigDict

from autosync.documents import STRICT
from autosync.errors import InvalidStrategy
from autosync.extensions.document import ExtensionDocument, HasExtensions

SHARES_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class PlacedModule:
    """A module that does not follow the replicas: its samples are dealt to `ranks`, and what it
    makes of them is dealt back. Only these ranks hold and update its variables.

    module: its qualified name; a leaf or a block. ranks: in ascending order. shares: of the global
    batch, one a rank, adding up to 1; samples keep their order, so the first rank has the first.
    """

    module: str
    ranks: tuple[int, ...]
    shares: tuple[float, ...]
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if not self.module:
            raise self._refusal("module", self.module, "is the model itself", "Name a part of it.")
        if not self.ranks or list(self.ranks) != sorted(set(self.ranks)) or self.ranks[0] < 0:
            raise self._refusal(
                "ranks",
                self.ranks[:16],
                f"lives on ranks {self.ranks[:16]}",
                "Name each rank once, in ascending order.",
            )
        if len(self.shares) != len(self.ranks):
            raise self._refusal(
                "shares",
                self.shares[:16],
                f"has {len(self.shares)} shares for {len(self.ranks)} ranks",
                "Give each rank one share.",
            )
        within = abs(fsum(self.shares) - 1) <= SHARES_TOLERANCE
        if not (min(self.shares) > 0 and within):  # NaN is neither
            raise self._refusal(
                "shares",
                self.shares[:16],
                f"has shares that add up to {fsum(self.shares):.6g}, the least of which is "
                f"{min(self.shares):.6g}",
                "Shares are positive and add up to 1.",
            )

    def _refusal(self, field: str, value: object, why: str, remedy: str) -> InvalidStrategy:
        return InvalidStrategy(
            f"placement: module {self.module!r} {why}.",
            thing=f"placement of {self.module}, {field}",
            value=value,
            remedy=remedy,
        )

    def holds(self, name: str) -> bool:
        """Whether a variable, or a module, of this name is inside."""
        return name.startswith(f"{self.module}.")

    def place(self, world_size: int) -> str:
        """Its ranks in words, and their shares where these differ."""
        words = f"rank{'s' * (len(self.ranks) > 1)} {', '.join(map(str, self.ranks))}"
        words = "all ranks" if len(self.ranks) == world_size else words
        if max(self.shares) - min(self.shares) > SHARES_TOLERANCE:
            words += f" by {', '.join(f'{share:.0%}' for share in self.shares)}"
        return words


PlacedModules = tuple[PlacedModule, ...]
"""Modules that are not named follow the replicas."""


@dataclass(frozen=True, slots=True)
class Placement(ExtensionDocument):
    """Modules that live on ranks of their own; the choices of their variables say how these ranks
    synchronize them.

    modules: in any order; stored by name.
    """

    modules: PlacedModules
    key: ClassVar[str] = "placement"
    divides_model: ClassVar[bool] = True
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if not self.modules:
            raise InvalidStrategy(
                "a placement names no module.",
                thing="placement",
                value=(),
                remedy="Leave the placement out.",
            )
        ordered = tuple(sorted(self.modules, key=lambda each: each.module))
        object.__setattr__(self, "modules", ordered)


def modules_of(document: HasExtensions) -> PlacedModules:
    """Those that it places; none where all follow the replicas."""
    placement = document.extension(Placement)
    return placement.modules if placement is not None else ()


def evenly(module: str, ranks: Iterable[int]) -> PlacedModule:
    """On these ranks, each with as many samples as another; on one device where it is one rank."""
    chosen = tuple(ranks)
    return PlacedModule(module, chosen, (1.0 / len(chosen),) * len(chosen))


def in_proportion(module: str, ranks: Iterable[int], speeds: Sequence[float]) -> PlacedModule:
    """On these ranks, each with samples in proportion to its speed. speeds: of all ranks."""
    chosen = tuple(ranks)
    total = fsum(speeds[rank] for rank in chosen)
    return PlacedModule(module, chosen, tuple(speeds[rank] / total for rank in chosen))


def placed_module(placement: Iterable[PlacedModule], name: str) -> PlacedModule | None:
    """The placed module that holds a variable, by its name; None where it follows the replicas."""
    return next((placed for placed in placement if placed.holds(name)), None)


def dealt_rows(shares: Sequence[float], rows: int) -> tuple[int, ...]:
    """How many of `rows` samples each share gets: as near to it as whole samples allow, and in sum
    all of them."""
    edges, passed = [0], 0.0
    for share in shares:
        passed += share
        edges.append(min(rows, round(passed * rows)))
    edges[-1] = rows
    return tuple(stop - start for start, stop in pairwise(edges))
