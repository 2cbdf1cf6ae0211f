"""How much of a device a training step may take that swaps."""

import numpy as np

from autosync.devices import DEVICE_TYPES
from autosync.domain import Domain
from autosync.extensions.offload.swap_choice import budget_within
from autosync.simulator.memory.peak_memory import device_memory_bytes


def swap_budget_bytes(domain: Domain) -> int | None:
    """Of the smallest device, less the reserve. None where no limit is known, or a device has no
    host memory beside its own, in which activations could wait."""
    least = float(device_memory_bytes(domain).min())
    types = {device.type for device in domain.cluster.device_of_rank()}
    if not np.isfinite(least) or not all(DEVICE_TYPES[each].host_beside for each in types):
        return None
    return budget_within(least)
