"""What collectives take on a cluster: the predicted table of nccl-tests, and the curves of logs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autosync.api.prediction_spec import CollectivesSpec
from autosync.api.views.schemas import CollectiveRow, CollectiveTable, MeasuredCurve
from autosync.cluster import Cluster
from autosync.cluster.cluster_sizes import cluster_of_nodes
from autosync.cluster.collective_curve import CollectiveCurve, bus_share
from autosync.errors import NotSupported
from autosync.interop.nccl_tests import Sweep, merged_curves


def collective_table(cluster: Cluster, asked: CollectivesSpec) -> CollectiveTable:
    """asked: of this cluster.

    Raises:
        InvalidInput, NotSupported: as `predicted_collectives` and `cluster_of_nodes`.
    """
    from autosync.simulator.backends.nccl import Forced  # loads numba
    from autosync.simulator.collective_predictions import predicted_collectives

    at = cluster if asked.nodes is None else cluster_of_nodes(cluster, asked.nodes)
    forced = Forced(asked.algorithm, asked.protocol, asked.channels)
    sizes = np.array(asked.sizes_bytes, dtype=np.float64)
    found = predicted_collectives(at, asked.operation, sizes, forced)
    share = bus_share(asked.operation, at.world_size)
    rows = [
        CollectiveRow(
            size_bytes=size,
            seconds=seconds,
            low_seconds=low,
            high_seconds=high,
            algbw_gbytes_per_second=size / seconds / 1e9,
            busbw_gbytes_per_second=share * size / seconds / 1e9,
            algorithm=algorithm,
            protocol=protocol,
            binding=binding,
        )
        for size, seconds, low, high, algorithm, protocol, binding in zip(
            asked.sizes_bytes,
            found.seconds.tolist(),
            found.low_seconds.tolist(),
            found.high_seconds.tolist(),
            found.algorithm,
            found.protocol,
            found.binding,
            strict=True,
        )
    ]
    return CollectiveTable(
        operation=asked.operation,
        ranks=at.world_size,
        nodes=_hosts(at),
        backend=at.backend,
        rows=rows,
        warnings=_warnings(at, asked),
    )


def _warnings(cluster: Cluster, asked: CollectivesSpec) -> list[str]:
    """What the times rest on: the cluster file's own measurements, or classes without any."""
    from autosync.simulator.backends.nccl import Forced
    from autosync.simulator.backends.nccl.collectives import counting_curve
    from autosync.simulator.cost.class_constants import unmeasured_collectives
    from autosync.simulator.cost.collective_costs import has_collective_model
    from autosync.simulator.topology import topology_of

    topology = topology_of(cluster)
    forced = Forced(asked.algorithm, asked.protocol, asked.channels)
    curve, measured = counting_curve(topology, asked.operation, forced)
    if curve is not None and curve.nodes == topology.nodes and measured == forced:
        return [f"times follow what the cluster file holds as measured: {curve}."]
    modelled = has_collective_model(cluster)
    found = [f"{each}." for each in unmeasured_collectives(topology)] if modelled else []
    if curve is not None and modelled:
        found.append(f"times are moved by what the cluster file holds as measured: {curve}.")
    elif cluster.curves:
        found.append("no curve of the cluster file counts here: nothing measured is used.")
    return found


@dataclass(frozen=True, slots=True)
class Calibrated:
    """cluster: with the curves of logs in place of its own of the same collectives. curves: those
    of the logs. warnings: of logs and cluster that disagree, and of costs that count in their
    place."""

    cluster: Cluster
    curves: list[MeasuredCurve]
    warnings: list[str]


def calibrated(cluster: Cluster, sweeps: Sequence[Sweep]) -> Calibrated:
    """The cluster with what logs of nccl-tests measured; of a version of NCCL that it does not
    state it takes the logs', where they agree.

    Raises:
        NotSupported: the cluster is not on NCCL.
    """
    if cluster.backend != "nccl":
        raise NotSupported(
            f"cluster {cluster.name!r} is on {cluster.backend}, and nccl-tests measure NCCL.",
            thing="backend",
            value=cluster.backend,
            remedy="State `backend: nccl` in the cluster file, or measure gloo's messages with "
            "`autosync probe`.",
        )
    found = merged_curves(sweeps)
    measured = {curve.measured for curve in found}
    kept = tuple(curve for curve in cluster.curves if curve.measured not in measured)
    logged = {sweep.nccl_version for sweep in sweeps if sweep.nccl_version}
    stated, warnings = cluster.nccl_version, []
    if stated and any(not f"{each}.".startswith(f"{stated}.") for each in logged):
        names = ", ".join(sorted(logged))
        warnings.append(f"the logs are of NCCL {names}, the cluster file says {stated}.")
    if any(cost.kind != "engine" for cost in cluster.costs):
        warnings.append(
            "jobs are predicted by the `costs` of messages that the cluster file states, not by "
            "these curves: without `costs` the curves count."
        )
    version = stated or (next(iter(logged)) if len(logged) == 1 else "")
    joined = replace(cluster, curves=(*kept, *found), nccl_version=version)
    return Calibrated(joined, list(_measured(cluster, found)), warnings)


def _measured(cluster: Cluster, curves: Iterable[CollectiveCurve]) -> Iterable[MeasuredCurve]:
    for curve in curves:
        rate = max(size / each for size, each in zip(curve.sizes_bytes, curve.seconds, strict=True))
        yield MeasuredCurve(
            curve=str(curve),
            least_bytes=curve.sizes_bytes[0],
            most_bytes=curve.sizes_bytes[-1],
            least_seconds=min(curve.seconds),
            most_busbw_gbytes_per_second=bus_share(curve.operation, curve.ranks) * rate / 1e9,
            warning=_does_not_count(cluster, curve),
        )


def _does_not_count(cluster: Cluster, curve: CollectiveCurve) -> str:
    """Why a curve does not stand for the cluster as it is; empty where it does. Predictions take
    every node to be as full as the fullest."""
    from autosync.simulator.topology import topology_of

    team = topology_of(cluster)
    if (curve.ranks, curve.nodes) == (team.ranks, team.nodes):
        return ""
    per_node = curve.ranks * team.nodes == team.ranks * curve.nodes
    carried = per_node and (curve.nodes > 1) == (team.nodes > 1)
    counts = (
        "whose predictions the curve moves and does not replace."
        if carried
        else "for which the curve does not count."
    )
    has = "has" if team.ranks == cluster.world_size else "is predicted as one of"
    return f"{curve}: the cluster {has} {team.ranks} ranks on {team.nodes} nodes, {counts}"


def _hosts(cluster: Cluster) -> int:
    return sum(node.ranks > 0 for node in cluster.nodes)
