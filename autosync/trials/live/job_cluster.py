"""The cluster that a running job sits on: hosts gathered from its ranks, links measured."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch
import torch.distributed as dist

from autosync.cluster import Backend, Cluster, Device, Node
from autosync.cluster.devices import device_type_of_gpu
from autosync.device_clock import wait_for_device
from autosync.environment import host_name
from autosync.errors import InvalidInput
from autosync.extensions.offload.arena import Arena, host_memory
from autosync.trials.gpus import gpu_uuid, mps_running, sharing_words
from autosync.trials.live.job import LiveJob
from autosync.units import MIB

SMALLEST_BYTES = 256 * 1024
LARGEST_BYTES = 64 * MIB
LONG_ENOUGH_SECONDS = 0.05
"""Messages grow fourfold until one takes this long, or is the largest."""

SLOWER = 1.1
"""A rank whose plain step takes this many times rank 0's, or less than rank 0's by as much, counts
as slower or faster; less is noise."""

LATENCY_TRIPS = 10


@dataclass(frozen=True, slots=True)
class RankReport:
    """What a rank reports of itself."""

    host: str
    device_type: str
    memory_gb: float | None
    step_seconds: float


def device_type_of(device: torch.device, stated: str | None = None) -> str:
    """Of a CPU within an arena: `arena`. Raises InvalidInput or NotSupported as
    `device_type_of_gpu` does."""
    if device.type != "cuda":
        return "arena" if Arena.entered else "cpu"
    return device_type_of_gpu(torch.cuda.get_device_properties(device).name, stated)


def device_memory_gb(device: torch.device) -> float | None:
    """Of a GPU or an arena; None of the CPU."""
    if device.type != "cuda":
        return Arena.entered[-1].budget_bytes / 1e9 if Arena.entered else None
    return torch.cuda.get_device_properties(device).total_memory / 1e9


def measure_cluster(job: LiveJob, step_seconds: float) -> Cluster:
    """The same cluster on every rank, from what all report and a short exchange on every link.

    Raises:
        InvalidInput: the ranks of a host are not numbered one after another, or another rank's
            exchange failed; where this one's did, its own error.
        NotSupported: a GPU is of no known type, and none is stated.
    """
    device_type = device_type_of(job.device, job.stated_device_type)
    mine = RankReport(host_name(), device_type, device_memory_gb(job.device), step_seconds)
    reports: list[RankReport] = job.control.gathered(mine)
    hosts = ranks_of_hosts([report.host for report in reports])
    between = _link_rates(job, list(zip(*hosts.values(), strict=False)))
    within = [
        _link_rates(job, [ranks[:2]])[0] if len(ranks) > 1 else None for ranks in hosts.values()
    ]
    latency = _latency_seconds(job)
    profiled = reports[0].step_seconds  # the domain's profile is rank 0's
    nodes = []
    for number, (host, ranks) in enumerate(hosts.items()):
        rate = max(between[number], between[number - 1]) if between else within[number]
        inside = within[number]
        assert rate is not None  # a job on one host has several ranks there
        devices = tuple(device_of_report(reports[rank], profiled) for rank in ranks)
        intra = inside / 1e9 * 8 if inside else None
        nodes.append(Node(host, devices, rate / 1e9 * 8, intra, latency * 1e6))
    found = job.group._get_backend(job.device).name()  # a process group may have several
    backend: Backend = "nccl" if found == "nccl" else "gloo"
    return Cluster("live", tuple(nodes), backend, description="measured inside the running job")


def gpu_sharing(job: LiveJob) -> str:
    """How ranks share GPUs, as reports print it; empty where each has its own."""
    on_gpu = job.device.type == "cuda"
    mine = (gpu_uuid(job.device), mps_running()) if on_gpu else ("", False)
    of_ranks: list[tuple[str, bool]] = job.control.gathered(mine)
    return sharing_words([gpu for gpu, _ in of_ranks], [by_mps for _, by_mps in of_ranks])


def ranks_of_hosts(hosts: Sequence[str]) -> dict[str, list[int]]:
    """The ranks of every host, in order.

    Raises:
        InvalidInput: a host's ranks do not follow one another.
    """
    found: dict[str, list[int]] = {}
    for host, group in groupby(range(len(hosts)), key=lambda rank: hosts[rank]):
        if host in found:
            raise InvalidInput(
                f"the ranks of host {host!r} are not numbered one after another: {list(hosts)}.",
                thing="ranks",
                value=list(hosts),
                remedy="Start the ranks host by host, as torchrun does (Slurm: "
                "--distribution=block).",
            )
        found[host] = list(group)
    return found


def device_of_report(report: RankReport, profiled_seconds: float) -> Device:
    """A rank's device. profiled_seconds: a plain step of the rank whose profile the domain has."""
    ratio = report.step_seconds / profiled_seconds
    slowdown = 1.0 if 1 / SLOWER < ratio < SLOWER else max(round(ratio, 2), 0.01)
    return Device(report.device_type, 1, report.memory_gb, slowdown)


def _link_rates(job: LiveJob, rings: Sequence[Sequence[int]]) -> list[float]:
    """Bytes a second that the members at each place of `rings` receive together from those before
    them, all at once: a host may have a NIC for each of its ranks. Every rank of the job calls
    this, since all agree on the size."""
    if len(rings[0]) < 2:
        return []
    ring = next((ring for ring in rings if dist.get_rank() in ring), ())
    size = SMALLEST_BYTES
    agreed = job.control.agreed  # or ranks outside of the ring would go on without one that failed
    agreed(partial(_exchange, job, ring, size))  # opens the connections
    while True:
        seconds: list[float] = job.control.gathered(agreed(partial(_exchange, job, ring, size)))
        if max(seconds) >= LONG_ENOUGH_SECONDS or size >= LARGEST_BYTES:
            slowest = [max(seconds[rank] for rank in place) for place in zip(*rings, strict=True)]
            received = [len(rings) * size / max(one, 1e-9) for one in slowest]
            return received[1:] + received[:1]  # of the link behind each place
        size *= 4


def _exchange(job: LiveJob, ring: Sequence[int], size_bytes: int) -> float:
    """Seconds until this rank has received the bytes of the rank before it; 0 outside of the
    ring."""
    dist.barrier(job.group)
    rank = dist.get_rank()
    if rank not in ring:
        return 0.0
    place = ring.index(rank)
    with host_memory():  # an arena may be smaller than what is sent
        outgoing = torch.empty(size_bytes, dtype=torch.uint8, device=job.device)
        incoming = torch.empty_like(outgoing)
    begun = time.monotonic()
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, outgoing, ring[(place + 1) % len(ring)], job.group),
            dist.P2POp(dist.irecv, incoming, ring[place - 1], job.group),
        ]
    )
    works.pop().wait()  # what is received; on NCCL both
    wait_for_device(job.device)
    seconds = time.monotonic() - begun
    for work in works:
        work.wait()
    return seconds


def _latency_seconds(job: LiveJob) -> float:
    """One way between the first rank and the last: half of the median of small round trips."""
    last = dist.get_world_size() - 1
    rank = dist.get_rank()

    def median_trip_seconds() -> float:
        trips, small = [], torch.zeros(1, device=job.device)
        for _ in range(LATENCY_TRIPS):
            wait_for_device(job.device)
            begun = time.monotonic()
            for source, target in ((0, last), (last, 0)):
                if rank == source:
                    dist.send(small, target, job.group)
                elif rank == target:
                    dist.recv(small, source, job.group)
            wait_for_device(job.device)  # NCCL is only asked for a message so far
            trips.append(time.monotonic() - begun)
        return sorted(trips)[len(trips) // 2]

    found: float = job.control.from_first(job.control.agreed(median_trip_seconds) / 2)
    return found
