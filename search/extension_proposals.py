"""What the search asks of the extensions of strategies (`autosync.extensions`)."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.extensions.registry import EXTENSIONS, Entries, part_of
from autosync.population import Population
from autosync.search.space import Space
from autosync.strategy import Strategy


class Drawn(NamedTuple):
    """What random proposals may carry. entries: drawn alike; `()` carries nothing. reduced, owned:
    whether proposals that carry something may be all-reduced, and owned by servers, throughout."""

    entries: tuple[Entries, ...] = ((),)
    reduced: bool = False
    owned: bool = False


class Proposer:
    """Of one extension: `PROPOSER` in its `proposals.py`. This one proposes nothing."""

    is_edited = False
    """Whether strategies are made by small edits of others that carry an entry."""

    def designs(self, space: Space) -> Iterable[tuple[str, Callable[[Domain], Strategy]]]:
        """Names and builders of hand-designed strategies."""
        return ()

    def lies_in(self, strategy: Strategy, space: Space) -> bool:
        """Whether the space allows what a strategy carries."""
        return True

    def drawn(self, domain: Domain, space: Space) -> Drawn:
        """What random proposals may carry."""
        return Drawn()

    def keeps(self, population: Population) -> NDArray[np.bool_]:
        """`(n,)`: whether each strategy, as an edit left it, may still carry its entry."""
        return np.ones(len(population), dtype=np.bool_)


def proposer_of(key: str) -> Proposer:
    found: Proposer = part_of(key, "proposals").PROPOSER
    return found


def proposers() -> list[Proposer]:
    """Of all extensions."""
    return [proposer_of(key) for key in EXTENSIONS]


def drawn_extensions(domain: Domain, space: Space) -> Drawn:
    """What random proposals carry: entries of one extension at the most."""
    offers = (each.drawn(domain, space) for each in proposers())
    return next((each for each in offers if each.reduced or each.owned), Drawn())


def kept_extensions(population: Population) -> NDArray[np.uint16]:
    """`(n,)`: what each strategy carries after edits, 0 where an extension drops it."""
    kept = population.extension.copy()
    for key, extension in EXTENSIONS.items():
        carrying = population.carrying(extension.document)
        if carrying.any():
            kept[carrying & ~proposer_of(key).keeps(population)] = 0
    return kept


def is_edited(entries: Entries) -> bool:
    """Whether others are made of a strategy that carries these."""
    return all(proposer_of(entry.key).is_edited for entry in entries)
