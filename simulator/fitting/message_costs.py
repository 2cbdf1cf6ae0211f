"""Fits a cluster's communication costs to timed single messages, and how much longer compute takes
while messages are in flight to recorded iterations.

A message takes the time of its links, which the network adds by itself, and beyond that a startup,
more of it for each worker, and an engine's copies of its bytes. What was measured beyond the
network's own link time is therefore a line in workers and bytes, one for each kind of message.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from autosync.cluster import Cluster, MessageCost, MessageKind
from autosync.cluster.collective_curve import CollectiveCurve, CollectiveOperation
from autosync.domain import Domain
from autosync.simulator.cost.compute_time import compute_factors
from autosync.simulator.cost.network import link_seconds_per_byte
from autosync.simulator.timeline.iteration_trace import common_seconds, union
from autosync.strategy import even_replicas
from autosync.trials.contract import ComputeTimes, MeasuredTimeline
from autosync.trials.probes import MessageSample, MessageSamples
from autosync.trials.worker.timed_messages import PROBED_OPERATION

F64 = NDArray[np.float64]


def with_message_costs(cluster: Cluster, measured: MessageSamples) -> Cluster:
    """The cluster with fitted costs of every kind that was measured, each with its residual.

    A cost is what exceeds the links' own time at the stated rates. On loopback these rates are not
    to be seen, and a cost is all that was measured.
    """
    kinds = tuple(dict.fromkeys(sample.kind for sample in measured.samples))
    fitted = []
    for kind in kinds:
        samples = [sample for sample in measured.samples if sample.kind == kind]
        links = np.array([_visible_link_seconds(cluster, each, measured) for each in samples])
        fitted.append(fit_message_cost(samples, links))
    others = tuple(cost for cost in cluster.costs if cost.kind not in kinds)
    return replace(cluster, costs=(*fitted, *others))


CURVE_OPERATION: dict[MessageKind, CollectiveOperation] = {
    "all_reduce": "all_reduce",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "all_gather": "all_gather",
    "all_to_all": "reduce_scatter",
}
"""The collective that a probe of the kind times (`PROBED_OPERATION`)."""


def with_message_curves(cluster: Cluster, measured: MessageSamples) -> Cluster:
    """The cluster with curves of the collectives over all ranks, as its links carried them; as it
    is where they are not to be seen."""
    if not measured.at_cluster_rates:
        return cluster
    nodes = sum(node.ranks > 0 for node in cluster.nodes)
    found = []
    for kind, operation in CURVE_OPERATION.items():
        seconds = {
            each.size_bytes: each.seconds
            for each in measured.samples
            if each.kind == kind and len(each.workers) == cluster.world_size
        }
        if seconds:
            sizes = tuple(sorted(seconds))
            times = tuple(seconds[size] for size in sizes)
            found.append(CollectiveCurve(operation, cluster.world_size, nodes, sizes, times))
    replaced = {curve.measured for curve in found}
    kept = tuple(curve for curve in cluster.curves if curve.measured not in replaced)
    return replace(cluster, curves=(*kept, *found))


def link_seconds(cluster: Cluster, sample: MessageSample) -> float:
    """What the network adds for the links of a message, at their stated rates."""
    operation, root = PROBED_OPERATION[sample.kind], sample.workers[0]
    return sample.size_bytes * link_seconds_per_byte(cluster, operation, sample.workers, root)


def _visible_link_seconds(
    cluster: Cluster, sample: MessageSample, measured: MessageSamples
) -> float:
    """What of a sample's seconds is that of its links. A shaper's burst passes free."""
    if not measured.at_cluster_rates:
        return 0.0
    burst_seconds = measured.burst_bytes / float(cluster.nic_bytes_per_second().min())
    return max(0.0, link_seconds(cluster, sample) - burst_seconds)


def fit_message_cost(samples: Sequence[MessageSample], link_seconds: F64) -> MessageCost:
    """Startup, startup per worker and seconds per byte, none negative, by least squares on
    relative errors of the whole time.

    samples: of one kind; over several numbers of workers, so that the two startups are told apart.
    link_seconds: `(samples,)`, what the links of each take.
    """
    workers = np.array([len(sample.workers) for sample in samples], dtype=np.float64)
    size_bytes = np.array([sample.size_bytes for sample in samples])
    seconds = np.array([sample.seconds for sample in samples])
    terms = np.stack([np.ones_like(workers), workers, size_bytes], axis=1) / seconds[:, None]
    target = (seconds - link_seconds) / seconds
    scale = np.linalg.norm(terms, axis=0)  # bytes are millions, workers a few
    found = nnls(terms / scale, target)[0] / scale
    error = terms @ found - target
    return MessageCost(
        kind=samples[0].kind,
        startup_seconds=float(found[0]),
        startup_seconds_per_worker=float(found[1]),
        seconds_per_byte=float(found[2]),
        residual=float(np.sqrt(np.mean(error**2))),
    )


def fit_overlap_slowdown(timelines: Iterable[MeasuredTimeline], domain: Domain) -> float | None:
    """A cluster's `overlap_slowdown`, from recorded iterations of strategies with even shares.

    What backward and the forward pass after it took beyond the profile's seconds, over the
    profile's seconds of what ran while the rank's messages were in flight. (A clock shows when
    a message is handed to the backend, not when its bytes begin to move.)

    None where records cannot tell: no message was recorded or none was in flight beside compute,
    or compute lost more than all the time that messages were.
    """
    lost = beside = 0.0
    factors = compute_factors(domain, even_replicas(domain.world_size))
    for timeline in timelines:
        for rank, factor in zip(timeline.ranks, factors, strict=True):
            if rank.messages is None:
                continue
            spans, passes = _backward_and_after(rank.compute)
            plain = domain.timing.backward_seconds
            plain += (passes - 1) * domain.timing.forward_seconds
            lost += float((spans[:, 1] - spans[:, 0]).sum()) - float(factor) * plain
            times = (rank.messages.started_seconds, rank.messages.ended_seconds)
            beside += common_seconds(spans, union(*map(np.array, times)))
    if not beside > max(lost, 0.0):
        return None
    return max(0.0, lost / (beside - lost))


def _backward_and_after(compute: ComputeTimes) -> tuple[F64, int]:
    """The `(spans, 2)` seconds of the backward pass and of the forward pass after it, waits left
    out; and how many of the two were recorded."""
    first = compute.phase.index("backward")
    phases = compute.phase[first:]
    of_passes = np.array([phase in ("forward", "backward") for phase in phases])
    times = np.column_stack([compute.start_seconds[first:], compute.stop_seconds[first:]])
    return times[of_passes], 1 + ("forward" in phases)
