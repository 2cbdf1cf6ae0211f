"""A cluster's own measurements of collectives, which count before any constants.

What was measured over what the constants say is a factor by size, interpolated between measured
sizes and held beyond them. So the predicted times pass through the measured ones, and take the
shape of NCCL's algorithms where nothing was measured. On other node counts of the same nodes the
factor of the nearest measured count is taken.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log2

import numpy as np
from numpy.typing import NDArray

from autosync.collective_curve import CollectiveCurve
from autosync.simulator.topology import Topology

F64 = NDArray[np.float64]

REPEATED_WIDTH = 0.05
"""Standard deviation of the logarithm of one collective's seconds from run to run."""
CARRIED_WIDTH = 0.15
CARRIED_SHARE = 0.5
"""On another number of nodes than the measured one: the same of what the two numbers differ by, and
the share of the constants' width that is left."""


@dataclass(frozen=True, slots=True)
class MeasuredFactor:
    """factor f64[n]: measured over constants' seconds, at each size. width f64[n]: standard
    deviation of its logarithm, from run to run and to other numbers of nodes. width_share f64[n]: of the constants' own width
    that is left."""

    factor: F64
    width: F64
    width_share: F64


def curve_for(
    topology: Topology, operation: str, algorithm: str, protocol: str
) -> CollectiveCurve | None:
    """The curve of the operation, as chosen or forced, on the nearest measured team: of as many
    GPUs a node, within one node or across several as the topology is."""
    forced = (algorithm.lower(), protocol.lower())
    alike = [
        curve
        for curve in topology.curves
        if curve.operation == operation
        and (curve.algorithm.lower(), curve.protocol.lower()) == forced
        and curve.ranks * topology.nodes == topology.ranks * curve.nodes
        and (curve.nodes > 1) == (topology.nodes > 1)
    ]
    nearness = {curve: abs(log2(curve.nodes / topology.nodes)) for curve in alike}
    return min(alike, key=lambda curve: (nearness[curve], curve.nodes), default=None)


def measured_factor(
    topology: Topology,
    curve: CollectiveCurve,
    size_bytes: F64,
    constants_seconds: Callable[[Topology, F64], F64],
) -> MeasuredFactor:
    """What a curve says of messages of `size_bytes` f64[n] on a topology.

    constants_seconds: of the curve's operation, for any topology and sizes, by the constants.
    """
    at = np.array(curve.sizes_bytes)
    there = topology.of_nodes(curve.nodes)
    ratio = np.log(np.array(curve.seconds) / constants_seconds(there, at))
    places = np.log(size_bytes)
    exact = curve.nodes == topology.nodes
    inside = (size_bytes >= at[0]) & (size_bytes <= at[-1])
    return MeasuredFactor(
        np.exp(np.interp(places, np.log(at), ratio)),
        np.full(len(size_bytes), REPEATED_WIDTH if exact else CARRIED_WIDTH),
        np.where(inside & exact, 0.0, CARRIED_SHARE),
    )
