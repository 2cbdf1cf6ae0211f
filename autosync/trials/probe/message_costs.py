"""Fits the communication costs of a cluster: one line per message kind, over sizes and workers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from autosync.cluster import Cluster, MessageCost, MessageKind
from autosync.domain import Domain, Profile
from autosync.errors import InvalidInput, NotSupported
from autosync.graph import ModelGraph, Operation, Variable
from autosync.trials.contract import Launcher, Workload
from autosync.trials.pool.process_pool import ProcessPool
from autosync.trials.pool.worker_transport import Links
from autosync.trials.testbed.rate_probes import BURST_BYTES
from autosync.trials.worker.timed_messages import KINDS

SMALL_SIZES = (1024, 4 * 1024)
"""Bytes that each replica contributes: messages that are all startup. (Up to its burst a shaper
lets bytes pass at once or not, as its bucket happens to be: no size in between tells anything.)"""

LARGE_SECONDS = 0.1
"""How long the largest probed message occupies the slowest NIC."""

REPEATS = 5


@dataclass(frozen=True, slots=True)
class Sample:
    """The median of some messages. seconds, wire_bytes: in the domain's units.

    link_seconds: what the links alone take at their stated rates.
    """

    kind: MessageKind
    wire_bytes: float
    workers: int
    seconds: float
    link_seconds: float


def probe(
    launcher: Launcher,
    cluster: Cluster,
    byte_scale: float = 1.0,
    time_scale: float = 1.0,
    sizes: Sequence[int] = (),
    repeats: int = REPEATS,
    kinds: tuple[MessageKind, ...] = KINDS,
) -> Cluster:
    """The cluster with fitted costs of every kind, each with its residual.

    sizes: bytes a replica contributes, as they travel here (scaled); by default a few small ones
        and two that the links' rates decide.
    A cost is what exceeds the links' own time at the stated rates, which the timeline adds by
    itself. On loopback these rates are not to be seen, and a cost is all there is.

    Raises:
        NotSupported, InaccurateLink: as `launcher.open`; or its workers time no messages.
        InvalidInput: fewer than three ranks, which cannot tell a startup from a worker's share.
    """
    workload = Workload(_bare_domain(cluster), byte_scale=byte_scale, time_scale=time_scale)
    with timing_pool(launcher, workload) as pool:
        return probe_pool(pool, cluster, sizes, repeats, kinds)


def probe_pool(
    pool: ProcessPool,
    cluster: Cluster,
    sizes: Sequence[int] = (),
    repeats: int = REPEATS,
    kinds: tuple[MessageKind, ...] = KINDS,
) -> Cluster:
    """`probe` on workers that are there already, whatever they train."""
    rate_factor = pool.workload.byte_scale / pool.workload.time_scale
    samples = [
        _sample(pool, cluster, kind, size, ranks, repeats)
        for kind in kinds
        for ranks in worker_counts(cluster)
        for size in sizes or usual_sizes(cluster, rate_factor)
    ]
    costs = tuple(fit([s for s in samples if s.kind == kind]) for kind in kinds)
    kept = tuple(cost for cost in cluster.costs if cost.kind not in kinds)
    return replace(cluster, costs=costs + kept)


BRIEF_SECONDS = 0.03
"""How long the large message of a brief probe occupies the slowest NIC."""


def brief_sizes(cluster: Cluster, rate_factor: float) -> tuple[int, ...]:
    """One small and one large size, for a probe of a few seconds."""
    large = int(cluster.nic_bytes_per_second().min() * rate_factor * BRIEF_SECONDS)
    return SMALL_SIZES[0], max(4 * BURST_BYTES, large)


def timing_pool(launcher: Launcher, workload: Workload) -> ProcessPool:
    pool = launcher.open(workload)
    if isinstance(pool, ProcessPool):
        return pool
    pool.close()
    raise NotSupported(
        f"the launcher {launcher.name!r} has no workers that time single messages.",
        thing="launcher",
        value=launcher.name,
        remedy="Probe with the testbed or the local launcher.",
    )


def worker_counts(cluster: Cluster) -> tuple[tuple[int, ...], ...]:
    """The sets of ranks that are probed: two of them at the least, all at the most.

    Ranks on nodes of their own come first, so that small sets cross the network.

    Raises:
        InvalidInput: there are fewer than three ranks.
    """
    if cluster.world_size < 3:
        raise InvalidInput(
            f"cluster {cluster.name!r} has {cluster.world_size} ranks: the costs of a message are "
            "fitted over different numbers of workers.",
            thing="cluster",
            value=cluster.world_size,
            remedy="Probe with at least three ranks.",
        )
    node = cluster.node_of_server()[: cluster.world_size]
    turn = [int(np.sum(node[:rank] == node[rank])) for rank in range(cluster.world_size)]
    order = sorted(range(cluster.world_size), key=lambda rank: (turn[rank], rank))
    counts = sorted({2, 3, (2 + cluster.world_size) // 2, cluster.world_size})
    return tuple(tuple(sorted(order[:count])) for count in counts if count >= 2)


def _sample(
    pool: ProcessPool,
    cluster: Cluster,
    kind: MessageKind,
    size: int,
    ranks: tuple[int, ...],
    repeats: int,
) -> Sample:
    seconds = float(np.median(pool.time_messages(kind, size, ranks, repeats)))
    wire = size / pool.workload.byte_scale
    return Sample(
        kind,
        wire,
        len(ranks),
        seconds / pool.workload.time_scale,
        visible_link_seconds(pool.links, pool.workload.byte_scale, cluster, kind, wire, ranks),
    )


def visible_link_seconds(
    links: Links,
    byte_scale: float,
    cluster: Cluster,
    kind: MessageKind,
    wire_bytes: float,
    ranks: tuple[int, ...],
) -> float:
    """What of a message's time is that of its links at their stated rates.

    Behind a shaper a burst passes free after the pause before; loopback has no such links.
    """
    if links == "loopback":
        return 0.0
    alone = link_seconds(cluster, kind, wire_bytes, ranks)
    if links == "cluster":
        return alone
    burst_seconds = BURST_BYTES / byte_scale / float(cluster.nic_bytes_per_second().min())
    return max(0.0, alone - burst_seconds)


def usual_sizes(cluster: Cluster, rate_factor: float) -> tuple[int, ...]:
    largest = int(cluster.nic_bytes_per_second().min() * rate_factor * LARGE_SECONDS)
    return (*SMALL_SIZES, *(max(size, 4 * BURST_BYTES) for size in (largest // 2, largest)))


def link_seconds(
    cluster: Cluster, kind: MessageKind, wire_bytes: float, ranks: tuple[int, ...]
) -> float:
    """What the slowest NIC alone takes when each of `ranks` contributes `wire_bytes`.

    The shares of gloo's algorithms, as measured: ring all-reduce and ring reduce, a binomial
    broadcast, pairwise the rest.
    """
    count = len(ranks)
    share = {
        "all_reduce": 2 * (count - 1) / count,
        "all_to_all": (count - 1) / count,
        "all_gather": (count - 1) / count,
        "reduce": 2 * (count - 1) / count,
        "broadcast": float(broadcast_rounds(count)),
        "send_recv": float(count - 1),
    }[kind]
    nodes = [cluster.nodes[int(i)] for i in cluster.node_of_server()[list(ranks)]]
    if len({node.address for node in nodes}) == 1:
        return wire_bytes * share * 8e-9 / (nodes[0].intra_bandwidth_gbps or np.inf)
    return wire_bytes * share * 8e-9 / min(node.bandwidth_gbps for node in nodes)


def broadcast_rounds(count: int) -> int:
    """Messages one after another on the slowest path of a binomial broadcast to `count` ranks:
    a sender's NIC is shared by all its children, and a child forwards what it has whole."""
    if count < 2:
        return 0
    children = (count - 1).bit_length()
    subtrees = [min(2**child, count - 2**child) for child in range(children)]
    return children + max(broadcast_rounds(subtree) for subtree in subtrees)


def fit(samples: list[Sample]) -> MessageCost:
    """Startup, startup per worker and seconds per byte, none negative, by least squares on
    relative errors of the whole time.

    Worker counts vary among the samples, so the two startups are told apart.
    """
    workers = np.array([sample.workers for sample in samples], dtype=np.float64)
    wire = np.array([sample.wire_bytes for sample in samples])
    seconds = np.array([sample.seconds for sample in samples])
    beyond = seconds - np.array([sample.link_seconds for sample in samples])
    terms = np.stack([np.ones_like(workers), workers, wire], axis=1)
    found = nonnegative_least_squares(terms / seconds[:, None], beyond / seconds)
    error = (terms @ found - beyond) / seconds
    return MessageCost(
        kind=samples[0].kind,
        startup_seconds=float(found[0]),
        startup_seconds_per_worker=float(found[1]),
        seconds_per_byte=float(found[2]),
        residual=float(np.sqrt(np.mean(error**2))),
    )


def nonnegative_least_squares(
    terms: NDArray[np.float64], target: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The `(n,)` x >= 0 that minimises |terms x - target|, exactly: the best of the unbounded
    solutions over every subset of the n (few) columns that is not negative."""
    count = terms.shape[1]
    best = np.zeros(count)
    least = float(np.sum(target**2))
    for size in range(1, count + 1):
        for chosen in combinations(range(count), size):
            columns = list(chosen)
            scale = np.linalg.norm(terms[:, columns], axis=0)
            part, *_ = np.linalg.lstsq(terms[:, columns] / scale, target, rcond=None)
            part = part / scale
            rest = float(np.sum((terms[:, columns] @ part - target) ** 2))
            if part.min() >= 0 and rest < least:
                least = rest
                best = np.zeros(count)
                best[columns] = part
    return best


def _bare_domain(cluster: Cluster) -> Domain:
    """The smallest domain on a cluster: probing needs workers, not a model."""
    operation = Operation("nothing", "identity", 0, 0, 0, True, (), (0,))
    graph = ModelGraph("probe", 1, (operation,), (Variable("v", (1,)),), (0,), (0,), (0,))
    profile = Profile("cpu", 1, (0.0,), (0.0,), 0.0, "estimated", "nothing is computed")
    return Domain(graph, cluster, profile)
