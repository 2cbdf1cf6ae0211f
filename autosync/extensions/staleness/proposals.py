"""Strategies whose updates are late, for the staleness that a space allows: a design, and what
random draws and small edits may carry."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from autosync.codes import Method, Order
from autosync.domain import Domain
from autosync.extensions.staleness.document import Staleness
from autosync.extensions.staleness.verification import is_plain
from autosync.population import Option, Population
from autosync.search.designs.building_blocks import assemble, everything, into_pieces, owned
from autosync.search.extension_proposals import Drawn, Proposer
from autosync.search.space import Space
from autosync.strategy import EXACT, Strategy
from autosync.units import MIB


class StalenessProposer(Proposer):
    is_edited = True

    def designs(self, space: Space) -> Iterator[tuple[str, Callable[[Domain], Strategy]]]:
        """Messages are long: the seconds that they take are hidden, their number is not."""
        for late in sorted({*space.staleness} - {0}):
            yield f"clocked_servers_{late}", _late(clocked_servers, late)

    def lies_in(self, strategy: Strategy, space: Space) -> bool:
        entry = strategy.extension(Staleness)
        return entry is None or entry.iterations in space.staleness

    def drawn(self, domain: Domain, space: Space) -> Drawn:
        """Nothing where it could not run: gradients are sparse, a pinned choice does not lag, or
        messages travel by NCCL."""
        pinned = [shard for pin in space.pins for shard in pin.shards]
        sparse = any(variable.sparse for variable in domain.graph.variables)
        runs = domain.cluster.backend == "gloo" and not sparse and all(map(is_plain, pinned))
        allowed = space.may_lag and space.parameter_server and EXACT in space.encodings
        if not (runs and allowed and domain.optimizer.elementwise):
            return Drawn()
        entries = tuple((Staleness(late),) if late else () for late in space.staleness)
        return Drawn(entries, owned=True)

    def keeps(self, population: Population) -> NDArray[np.bool_]:
        """Those whose shards all are of a kind that may lag."""
        plain = np.array([option == Option() for option in population.options])
        sound = plain[population.option] & (population.method == Method.PARAMETER_SERVER)
        kept: NDArray[np.bool_] = np.logical_and.reduceat(sound, population.first[:-1])
        kept &= ~population.overlap & (population.order != Order.DDP) & (population.engine == 0)
        return kept


def clocked_servers(domain: Domain) -> Strategy:
    """A message for each owner, so that its answer leaves while others are still asked."""
    choices = owned(domain, everything(domain), into_pieces(4 * MIB), by_bandwidth=True)
    return assemble(domain, choices, limit_bytes=25 * MIB)


def _late(build: Callable[[Domain], Strategy], iterations: int) -> Callable[[Domain], Strategy]:
    return lambda domain: build(domain).carrying(Staleness(iterations))


PROPOSER = StalenessProposer()
