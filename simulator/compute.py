"""How long the slowest rank computes: the profile, stretched by its device and its share."""

import numpy as np
from numpy.typing import NDArray

from autosync.devices import DEVICE_TYPES
from autosync.domain import Domain
from autosync.errors import InvalidInput
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
        factors[replica.rank] = (
            replica.share * domain.world_size * device.slowdown * _type_factor(domain, device.type)
        )
    return factors


def _type_factor(domain: Domain, device_type: str) -> float:
    """Compute time of a device type over that of the profile's, by their published peaks."""
    profiled = domain.profile.device
    if profiled == device_type:
        return 1.0
    if profiled not in DEVICE_TYPES:
        raise InvalidInput(
            f"the profile is of device {profiled!r}, the cluster has {device_type!r}: their "
            "speeds cannot be compared.",
            thing="profile.device",
            value=profiled,
            remedy=f"Name one of {', '.join(DEVICE_TYPES)}, or profile on the cluster's device.",
        )
    ratio = (
        DEVICE_TYPES[profiled].peak_flops_per_second
        / DEVICE_TYPES[device_type].peak_flops_per_second
    )
    return ratio


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
