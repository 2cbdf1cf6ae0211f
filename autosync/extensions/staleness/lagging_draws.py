"""Which proposals may lag: of a draw, and of strategies made of others."""

import numpy as np
from numpy.typing import NDArray

from autosync.codes import Method, Order
from autosync.domain import Domain
from autosync.extensions.staleness.staleness_verification import is_plain
from autosync.population import Option, Population
from autosync.search.space import Space
from autosync.strategy import EXACT, AllReduce, ParameterServer

LAGGING_METHODS = (Method.ALL_REDUCE, Method.PARAMETER_SERVER)


def forms_that_lag(domain: Domain, space: Space) -> tuple[bool, bool]:
    """Whether lagging proposals may be all-reduced, and whether servers with clocks may hold them.

    Neither where they could not run: gradients are sparse, a pinned choice does not lag, or
    messages travel by NCCL.
    """
    pinned = [shard for pin in space.pins for shard in pin.shards]
    sparse = any(variable.sparse for variable in domain.graph.variables)
    runs = domain.cluster.backend == "gloo" and not sparse and all(map(is_plain, pinned))
    if not (runs and space.may_lag and EXACT in space.encodings):
        return False, False
    reduced = space.all_reduce and all(isinstance(shard, AllReduce) for shard in pinned)
    owned = space.parameter_server and all(isinstance(shard, ParameterServer) for shard in pinned)
    return reduced, owned and domain.optimizer.elementwise


def kept_staleness(population: Population) -> NDArray[np.uint8]:
    """A `(strategies,)` column: their staleness, but 0 of those that have neither of its forms."""
    if not population.staleness.any():
        return population.staleness
    plain = np.array([option == Option() for option in population.options])
    sound = plain[population.option] & np.isin(population.method, LAGGING_METHODS)
    starts = population.first[:-1]
    alike = np.minimum.reduceat(population.method, starts) == np.maximum.reduceat(
        population.method, starts
    )
    lags = np.logical_and.reduceat(sound, starts) & alike
    lags &= ~population.overlap & (population.order != Order.DDP) & (population.engine == 0)
    kept: NDArray[np.uint8] = np.where(lags, population.staleness, 0).astype(np.uint8)
    return kept
