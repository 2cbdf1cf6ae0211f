"""How long the slowest rank computes: the profile, stretched by its device and its share."""

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.strategy import Replica


def compute_factors(domain: Domain, layout: tuple[Replica, ...]) -> NDArray[np.float64]:
    """How many times the profiled compute each rank takes, `(world,)`; 0 without a replica.

    A share of the global batch above the even one, a slowdown and a device type with a lower
    published peak than the profile's each stretch it.
    """
    factors = np.zeros(domain.world_size)
    devices = domain.cluster.device_of_rank()
    for replica in layout:
        device = devices[replica.rank]
        factors[replica.rank] = replica.share * domain.world_size * domain.profile.factor_on(device)
    return factors


def slowest_factors(
    domain: Domain, layouts: tuple[tuple[Replica, ...], ...]
) -> NDArray[np.float64]:
    """The slowest rank's factor under each layout, `(layouts,)`."""
    return np.array([compute_factors(domain, layout).max() for layout in layouts])


def compute_seconds(
    domain: Domain, layouts: tuple[tuple[Replica, ...], ...]
) -> NDArray[np.float64]:
    """Forward, backward and update of the slowest rank under each layout, `(layouts,)`."""
    profile = domain.profile
    compute = slowest_factors(domain, layouts) * profile.compute_seconds
    result: NDArray[np.float64] = compute + profile.update_seconds
    return result
