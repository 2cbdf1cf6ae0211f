"""How long one collective over all ranks of a cluster takes, by size, on any backend."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from autosync.cluster import Cluster
from autosync.cluster.collective_curve import CollectiveOperation
from autosync.codes import Op
from autosync.errors import NotSupported
from autosync.plan.plan_table import ALL_RANKS, cluster_teams
from autosync.simulator.backends.nccl import CollectiveTimes, Forced, collective_times
from autosync.simulator.backends.nccl.measured_curves import NINE_OF_TEN, at_measured, curve_for
from autosync.simulator.cost.collective_costs import has_collective_model
from autosync.simulator.cost.message_classes import COST_KIND
from autosync.simulator.cost.network import network_of
from autosync.simulator.topology import topology_of

F64 = NDArray[np.float64]

BY_EDGES: dict[CollectiveOperation, Op] = {
    "all_reduce": Op.ALL_REDUCE,
    "reduce": Op.REDUCE,
    "broadcast": Op.BROADCAST,
    "all_gather": Op.ALL_GATHER,
    "reduce_scatter": Op.REDUCE_SCATTER,
}
"""What plans hold, and so is predicted where messages cost what their links take."""

ASSUMED_STARTUP_WIDTH = 0.5
LINK_WIDTH = 0.08
"""Standard deviations of the logarithm of what was not measured: gloo's messages on AWS were
predicted within 13 % for nine of ten (`python -m benchmarks.published.gloo_messages`)."""


def predicted_collectives(
    cluster: Cluster, operation: CollectiveOperation, size_bytes: F64, forced: Forced | None = None
) -> CollectiveTimes:
    """Seconds of an operation alone at each size, f64[n], as nccl-tests count it.

    Raises:
        InvalidInput: an algorithm or protocol that NCCL has not, or that does not run there.
        NotSupported: something is forced where the backend has no choice, or an operation that no
            plan holds there.
    """
    chosen = forced or Forced()
    if has_collective_model(cluster):
        return collective_times(topology_of(cluster), operation, size_bytes, chosen)
    why = "on gloo" if cluster.backend == "gloo" else "by the costs that the cluster file states"
    if chosen != Forced():
        raise NotSupported(
            f"{cluster.name}: messages are predicted {why}, where nothing can be forced.",
            thing="algorithm",
            value=chosen.algorithm or chosen.protocol or chosen.channels,
            remedy="Leave out --algo, --proto and --channels.",
        )
    if operation not in BY_EDGES:
        raise NotSupported(
            f"{cluster.name}: no {operation} is predicted {why}.",
            thing="operation",
            value=operation,
            remedy=f"Ask for one of {', '.join(BY_EDGES)}.",
        )
    return _by_edges(cluster, operation, np.asarray(size_bytes, dtype=np.float64))


def _by_edges(cluster: Cluster, operation: CollectiveOperation, sizes: F64) -> CollectiveTimes:
    startup, held, seconds_of, slowest = _line(cluster, operation)
    seconds = seconds_of(sizes)
    cost = cluster.cost(COST_KIND[BY_EDGES[operation]])
    if cost.residual is not None:
        width = np.full(len(sizes), max(cost.residual, LINK_WIDTH / 2))
    else:
        starting = startup / seconds * ASSUMED_STARTUP_WIDTH
        width = np.hypot(starting, (1.0 - startup / seconds) * LINK_WIDTH)
    half_width = NINE_OF_TEN * width
    topology = topology_of(cluster)
    curve = curve_for(topology, operation, "", "")
    if curve is not None and curve.nodes == topology.nodes:
        seconds, half_width = at_measured(
            topology, curve, sizes, lambda _, at: seconds_of(at), half_width
        )
    factor = np.exp(half_width)
    none = ("",) * len(sizes)
    waited = startup - held
    binding = tuple("startup" if each < 2 * waited else slowest for each in seconds.tolist())
    return CollectiveTimes(seconds, seconds / factor, seconds * factor, none, none, binding)


def _line(
    cluster: Cluster, operation: CollectiveOperation
) -> tuple[float, float, Callable[[F64], F64], str]:
    """Seconds besides the bytes, those of them in which links are held, those of messages of `(n,)`
    bytes, and the slowest link."""
    network = network_of(cluster, cluster_teams(cluster))
    place = int(network.class_of(BY_EDGES[operation], ALL_RANKS))
    held = float(network.link_seconds[place])
    startup = float(network.message_seconds[place] + network.link_seconds[place])
    per_byte = float(
        network.seconds_per_byte[place]
        + network.copy_seconds_per_byte[place]
        + network.host_seconds_per_byte[place]
    )

    def seconds(size_bytes: F64) -> F64:
        return startup + size_bytes * per_byte

    return startup, held, seconds, network.resources[int(network.load[place].argmax())]
