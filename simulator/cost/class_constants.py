"""What the class of a system tells of predictions for it, where nothing was measured on itself.

Times of collectives come from `backends.nccl.constants`, by classes of links, transports and GPUs;
what replication adds to compute from `replication_constants`.
"""

from collections.abc import Iterator

import numpy as np

from autosync.cluster import Cluster
from autosync.cluster.devices import DEVICE_TYPES
from autosync.simulator.backends.nccl import collective_times, confidence
from autosync.simulator.cost.collective_costs import has_collective_model
from autosync.simulator.topology import Topology, topology_of

FITTED = "priors of NCCL's tuner and data sheets, and published sweeps of nccl-tests, by class"
MEASURED = "nccl-tests and training runs of other systems (datasets/measurements)"
MEASURED_YEARS = (2017, 2020)
"""Introduction of the GPUs whose training runs set `REPLICATION`."""


def unmeasured_classes(cluster: Cluster) -> Iterator[str]:
    """Sentences on what a prediction rests that nobody measured, or that the file leaves out."""
    yield from unmeasured_collectives(topology_of(cluster))
    others = [
        kind
        for kind in sorted({device.type for device in cluster.device_of_rank()})
        if not MEASURED_YEARS[0] <= DEVICE_TYPES[kind].year <= MEASURED_YEARS[1]
    ]
    if others:
        yield (
            f"no training run was measured on {', '.join(others)}: what replication adds to "
            "compute is that of V100 and A100"
        )


def unmeasured_collectives(topology: Topology) -> Iterator[str]:
    """The same of the times of collectives."""
    yield from topology.assumed
    for name, constants in confidence(topology).items():
        if not any(each.measured for each in constants.values()):
            yield (
                f"no collective was measured on {name}: times are priors from data sheets "
                "(`autosync cluster calibrate` reads your nccl-tests logs)"
            )


def network_factors(cluster: Cluster, size_bytes: float) -> tuple[float, float]:
    """Between which multiples of their predicted seconds nine of ten all-reduces of so many bytes
    are expected. 1 and 1 where the cluster's file states what messages cost."""
    if not has_collective_model(cluster):
        return 1.0, 1.0
    times = collective_times(topology_of(cluster), "all_reduce", np.array([size_bytes]))
    if not times.seconds[0]:
        return 1.0, 1.0
    low, high = times.low_seconds[0], times.high_seconds[0]
    return float(low / times.seconds[0]), float(high / times.seconds[0])
