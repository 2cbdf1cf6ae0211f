"""What the search asks of the extensions of strategies (`autosync.extensions`)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.extensions.registry import EXTENSIONS, Entries, part_of
from autosync.population import Population
from autosync.search.space import Space
from autosync.strategy import Strategy

if TYPE_CHECKING:
    from autosync.search.loop.settings import Settings
    from autosync.search.loop.tuning_store import Candidate, Store
    from autosync.simulator.simulator_contract import Simulator

Named = Sequence[tuple[str, Strategy]]
"""Designs by their names."""

Stop = Callable[[], bool]
"""Whether proposers end with what they have found; asked only where there is more to look at."""


def no_stop() -> bool:
    """Of proposers that their budget alone ends."""
    return False


class Drawn(NamedTuple):
    """What random proposals may carry. entries: drawn alike; `()` carries nothing. owned: whether
    there are any; proposals that carry something are owned by servers throughout."""

    entries: tuple[Entries, ...] = ((),)
    owned: bool = False


@dataclass(frozen=True, slots=True)
class ProposalRequest:
    """What a proposer makes candidates of.

    bases: the most promising first; some may carry entries. tried: not proposed again. store:
    of a tuning's trials. stop: ends it before it has looked at everything.
    """

    domain: Domain
    space: Space
    simulator: "Simulator"
    bases: Sequence[Strategy]
    settings: "Settings"
    tried: Sequence[Strategy] = ()
    store: "Store | None" = None
    stop: Stop = no_stop


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

    def fitting_forms(self, domain: Domain, named: Named, space: Space) -> Named:
        """Of designs that do not fit the devices' memory, forms that do."""
        return ()

    def can_fit(self, domain: Domain, space: Space, stop: Stop) -> bool:
        """Whether any of its candidates fits where no design does, of those looked at before
        `stop`."""
        return False

    def retries(
        self, domain: Domain, space: Space, simulator: "Simulator", store: "Store"
    ) -> "list[Candidate]":
        """What failed in its trials and is due once more in another form, the most promising
        first."""
        return []

    def candidates(self, request: ProposalRequest) -> "list[Candidate]":
        """Strategies made of the request's bases, that fit the devices' memory, the fastest by
        prediction first."""
        return []


def proposer_of(key: str) -> Proposer:
    found: Proposer = part_of(key, "proposals").PROPOSER
    return found


def proposers() -> list[Proposer]:
    """Of all extensions."""
    return [proposer_of(key) for key in EXTENSIONS]


def fitting_forms(domain: Domain, named: Named, space: Space) -> list[tuple[str, Strategy]]:
    """Forms of all extensions in which designs fit that otherwise do not."""
    return [form for each in proposers() for form in each.fitting_forms(domain, named, space)]


def retries(
    domain: Domain, space: Space, simulator: "Simulator", store: "Store"
) -> "list[Candidate]":
    """What extensions make of designs whose trials failed."""
    return [one for each in proposers() for one in each.retries(domain, space, simulator, store)]


def extension_candidates(request: ProposalRequest) -> "list[Candidate]":
    """See `Proposer.candidates`; of all extensions."""
    return [one for each in proposers() for one in each.candidates(request)]


def drawn_extensions(domain: Domain, space: Space) -> Drawn:
    """What random proposals carry: entries of one extension at the most."""
    offers = (each.drawn(domain, space) for each in proposers())
    return next((each for each in offers if each.owned), Drawn())


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
