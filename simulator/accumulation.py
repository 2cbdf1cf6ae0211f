"""What an iteration takes that adds up the gradients of several batches before it updates."""

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.population import Population
from autosync.simulator.cost.compute_time import slowest_factors


def accumulated_seconds(
    domain: Domain, population: Population, seconds: NDArray[np.float64], batches: int
) -> NDArray[np.float64]:
    """Seconds of `batches` forward and backward passes and one update, `(strategies,)`.

    seconds: of each strategy with one batch. Gradients travel with the last batch (`no_sync` of
    DDP); under `fully_shard`, whose ranks hold a part of each gradient, with every batch.

    Raises:
        InvalidInput: batches below 1.
    """
    if batches < 1:
        raise InvalidInput(
            f"gradients of {batches} batches cannot be added up.",
            thing="accumulate",
            value=batches,
            remedy="State 1 or more; 1 is an update after every batch.",
        )
    factors = slowest_factors(domain, population.layouts)[population.layout]
    passes = factors * (domain.timing.forward_seconds + domain.timing.backward_seconds)
    added = np.where(population.engine > 0, seconds - _update_seconds(domain, population), passes)
    result: NDArray[np.float64] = seconds + (batches - 1) * added
    return result


def _update_seconds(domain: Domain, population: Population) -> NDArray[np.float64]:
    """Of a rank's part of the parameters, `(strategies,)`; 0 without an engine."""
    parts = [engine.shard_ranks if engine else np.inf for engine in population.engines]
    result: NDArray[np.float64] = domain.profile.update_seconds / np.array(parts)[population.engine]
    return result
