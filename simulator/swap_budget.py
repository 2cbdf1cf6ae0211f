"""How much of a device a training step may take that swaps activations."""

import numpy as np

from autosync.devices import DEVICE_TYPES
from autosync.domain import Domain
from autosync.simulator.peak_memory import device_memory_bytes

RESERVE = 0.1
"""Of a device's memory, left to what no prediction knows: inputs that the script holds, workspaces
of kernels, what the allocator rounds up, a GPU's context. A swapped step fills its budget, so it
needs this room more than one that happens to fit. Predicted peaks were up to 2 % too small on a CPU
(docs/simulator.md); on a GPU nobody has measured them."""


def swap_budget_bytes(domain: Domain) -> int | None:
    """Of the smallest device, less the reserve. None where no limit is known, or a device has no
    host memory beside its own, in which activations could wait."""
    least = float(device_memory_bytes(domain).min())
    types = {device.type for device in domain.cluster.device_of_rank()}
    if not np.isfinite(least) or not all(DEVICE_TYPES[each].host_beside for each in types):
        return None
    return int(least * (1 - RESERVE))
