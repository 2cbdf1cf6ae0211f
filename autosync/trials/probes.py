"""Measurements of a probe on a pool's ranks: single messages of each kind, and a replay's kernels.

Messages are timed over sizes and numbers of ranks. The seconds of kernels do not depend on the
domain's profile, so a tuning whose compute is kernels first measures them and predicts from the
result. All ranks compute at once during the measurement: ranks that share a GPU (or a machine's
cores) are then as slow as in trials."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from autosync.cluster import Cluster, MessageKind
from autosync.domain import Domain, Profile
from autosync.errors import InvalidInput, NotSupported
from autosync.trials.commands import StretchesTimed
from autosync.trials.contract import Launcher, TrialFailed, Workload
from autosync.trials.pool.process_pool import ProcessPool
from autosync.trials.testbed.link_shaping import BURST_BYTES
from autosync.trials.worker.timed_messages import KINDS
from autosync.units import MIB

SMALL_SIZES = (1024, 4 * 1024)
"""Bytes that each replica contributes: messages that are all startup. (Up to its burst a shaper
lets bytes pass at once or not, as its bucket happens to be: sizes in between show nothing.)"""

LARGE_SECONDS = 0.1
"""How long the largest probed message occupies the slowest NIC."""

BRIEF_SECONDS = 0.03
"""How long the large message of a brief probe occupies the slowest NIC."""

ROOM_BYTES = 4096 * MIB
"""Of one message, that a rank holds at most where it receives from all others. In `LARGE_SECONDS`
eight ports of 400 Gbit/s carry 39 GB."""

REPEATS = 5


KERNEL_REPEATS = 10

KERNEL_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class MessageSample:
    """The seconds of messages of one kind and size among some ranks.

    size_bytes: that each replica contributes. seconds: their median. Both in the domain's units,
    whatever the scales of the workload.
    """

    kind: MessageKind
    size_bytes: float
    workers: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class MessageSamples:
    """The samples of one probe.

    at_cluster_rates: whether they hold the time of links at the cluster's stated rates; on
        loopback they do not.
    burst_bytes: that links pass at once after a pause, in the domain's units: a shaper's burst.
    """

    samples: tuple[MessageSample, ...]
    at_cluster_rates: bool
    burst_bytes: float = 0.0


class MessagePool(Protocol):
    """Ranks that time single messages: of a pool's workers, or of a running job.

    scales: byte scale s and time scale k. at_cluster_rates: whether messages show the cluster's
    links. shaped: whether links are emulated.
    """

    @property
    def scales(self) -> tuple[float, float]: ...

    @property
    def at_cluster_rates(self) -> bool: ...

    @property
    def shaped(self) -> bool: ...

    def time_messages(
        self, kind: MessageKind, size_bytes: int, workers: tuple[int, ...], repeats: int
    ) -> list[float]:
        """Seconds of each message of a kind among the ranks `workers`. Raises TrialFailed."""
        ...


def measure_messages(
    pool: MessagePool,
    cluster: Cluster,
    sizes: Sequence[int] = (),
    repeats: int = REPEATS,
    kinds: tuple[MessageKind, ...] = KINDS,
    out_of_time: Callable[[], bool] = lambda: False,
) -> MessageSamples:
    """Samples of every kind on ranks that are there already, whatever they train.

    cluster: that the ranks are. sizes: bytes a replica contributes, as they travel here (scaled);
        by default a few small ones and two that the links' rates decide. out_of_time: asked before
        every sample; True ends the probe.

    Raises:
        InvalidInput: fewer than three ranks, which do not show how costs grow with ranks.
        NotSupported: the time is up before all kinds are measured.
        TrialFailed: a worker failed or hung.
    """
    byte_scale, time_scale = pool.scales
    todo = [
        (kind, ranks, size)
        for kind in kinds
        for ranks in worker_counts(cluster)
        for size in sizes or usual_sizes(cluster, byte_scale / time_scale)
    ]
    samples: list[MessageSample] = []
    for kind, ranks, size in todo:
        if out_of_time():
            raise NotSupported(
                f"there was time for {len(samples)} of {len(todo)} samples of single messages.",
                thing="probe",
                value=len(samples),
                remedy="Give the tuning more time.",
            )
        seconds = float(np.median(pool.time_messages(kind, size, ranks, repeats)))
        samples.append(MessageSample(kind, size / byte_scale, ranks, seconds / time_scale))
    burst_bytes = BURST_BYTES / byte_scale if pool.shaped else 0.0
    return MessageSamples(tuple(samples), pool.at_cluster_rates, burst_bytes)


def usual_sizes(cluster: Cluster, rate_factor: float) -> tuple[int, ...]:
    """Small messages, and two that the rate of the slowest NIC decides.

    rate_factor: bytes a second here over those of the cluster file.
    """
    largest = _large_bytes(cluster, rate_factor, LARGE_SECONDS)
    return (*SMALL_SIZES, max(largest // 2, 4 * BURST_BYTES), largest)


def brief_sizes(
    cluster: Cluster, rate_factor: float, room_bytes: int = ROOM_BYTES
) -> tuple[int, ...]:
    """One small and one large size, for a probe of a few seconds."""
    return SMALL_SIZES[0], _large_bytes(cluster, rate_factor, BRIEF_SECONDS, room_bytes)


def _large_bytes(
    cluster: Cluster, rate_factor: float, seconds: float, room_bytes: int = ROOM_BYTES
) -> int:
    """What the slowest NIC carries in so many seconds, and more than a shaper's burst; as far as a
    rank that receives from all others has room for it."""
    carried = int(cluster.nic_bytes_per_second().min() * rate_factor * seconds)
    return min(max(carried, 4 * BURST_BYTES), room_bytes // (cluster.world_size - 1))


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
    local_rank = [int(np.sum(node[:rank] == node[rank])) for rank in range(cluster.world_size)]
    order = sorted(range(cluster.world_size), key=lambda rank: (local_rank[rank], rank))
    counts = sorted({2, 3, (2 + cluster.world_size) // 2, cluster.world_size})
    return tuple(tuple(sorted(order[:count])) for count in counts if count >= 2)


def profile_kernels(pool: ProcessPool, repeats: int = KERNEL_REPEATS) -> Profile:
    """The profile of the pool's domain with the seconds that its kernels take on its workers.

    It is stated for the cluster's fastest type of device, and measured on those: one profile for
    ranks that compute at once, so the mean over them.

    Raises:
        NotSupported: the workers could not run them; says why.
    """
    try:
        answers = pool.time_stretches(repeats, KERNEL_TIMEOUT_SECONDS)
    except TrialFailed as failure:
        raise NotSupported(
            f"the kernels could not be timed: {failure.error.message}",
            thing="compute",
            value="kernels",
            remedy="Choose compute waited, or a smaller batch.",
        ) from None
    domain = pool.workload.domain
    fastest = domain.cluster.fastest_device_type
    devices = domain.cluster.device_of_rank()
    of = [answer for answer, at in zip(answers, devices, strict=True) if at.type == fastest]
    return measured_profile(domain, of)


def measured_profile(domain: Domain, answers: Sequence[StretchesTimed]) -> Profile:
    """answers: of `time_stretches`, from ranks on equal devices."""
    names = sorted({answer.device for answer in answers})
    ranks = f"{len(answers)} ranks at once" if len(answers) > 1 else "one rank"
    return Profile(
        device=domain.cluster.fastest_device_type,
        batch_size=domain.batch_size,
        forward_seconds=tuple(_by_operation(domain, answers, backward=False).tolist()),
        backward_seconds=tuple(_by_operation(domain, answers, backward=True).tolist()),
        update_seconds=mean(answer.update_seconds for answer in answers),
        source="measured",
        note=f"kernels of the operations' shapes, {ranks} on {', '.join(names)}; each stretch "
        "counts for the operation that it gates or makes a gradient with",
    )


def _by_operation(
    domain: Domain, answers: Sequence[StretchesTimed], backward: bool
) -> NDArray[np.float64]:
    seconds = np.zeros(len(domain.graph.operations))
    for answer in answers:
        entries = zip(answer.operations, answer.backward, answer.seconds, strict=True)
        for operation, is_backward, each in entries:
            if is_backward == backward:
                seconds[operation] += each / len(answers)
    return seconds
