"""A cluster's own measurements of collectives, which count before any constants.

What was measured over what the constants say is a factor by size, interpolated between measured
sizes and held beyond them. So the predicted times pass through the measured ones, and take the
shape of NCCL's algorithms where nothing was measured. On other numbers of the same nodes the
factor of the nearest measured number counts as far as the constants are less certain than what two
numbers of nodes differ by.
"""

from collections.abc import Callable
from dataclasses import replace
from math import log2

import numpy as np
from numpy.typing import NDArray

from autosync.cluster.collective_curve import CollectiveCurve
from autosync.nccl_knobs import NcclKnobs
from autosync.simulator.topology import Topology

F64 = NDArray[np.float64]

NINE_OF_TEN = 1.645
"""Standard deviations on each side within which nine of ten of a normal distribution lie."""
REPEATED_WIDTH = 0.05
"""Standard deviation of the logarithm of one collective's seconds from run to run."""
CARRIED_WIDTH = 0.15
"""The same from what was measured to other sizes and numbers of nodes: sweeps on two and four nodes
of the same kind were 12 to 14 % apart (median) where each was carried to the other."""


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


def at_measured(
    topology: Topology,
    curve: CollectiveCurve,
    size_bytes: F64,
    constants_seconds: Callable[[Topology, F64], F64],
    half_width: F64,
) -> tuple[F64, F64]:
    """Seconds of messages of `size_bytes` f64[n] on a topology, and half the width of their
    logarithms' interval in which nine of ten are expected, both f64[n].

    constants_seconds: of the curve's operation by the constants, for any topology and sizes.
    half_width: the same of these.
    """
    at = np.array(curve.sizes_bytes)
    exact = curve.nodes == topology.nodes
    as_measured = replace(topology.of_nodes(curve.nodes), nccl=NcclKnobs())
    ratio = np.log(np.array(curve.seconds) / constants_seconds(as_measured, at))
    spread = (half_width / NINE_OF_TEN) ** 2
    weight = np.ones_like(spread) if exact else spread / (spread + CARRIED_WIDTH**2)
    factor = np.exp(weight * np.interp(np.log(size_bytes), np.log(at), ratio))
    carried = np.minimum(half_width, NINE_OF_TEN * CARRIED_WIDTH * np.sqrt(1.0 + weight))
    measured = exact & (size_bytes >= at[0]) & (size_bytes <= at[-1])
    width = np.where(measured, NINE_OF_TEN * REPEATED_WIDTH, carried)
    return constants_seconds(topology, size_bytes) * factor, width
