"""The emulated clusters that the runtime's benchmarks share, and what may be reached on them."""

from collections.abc import Sequence
from dataclasses import dataclass

from autosync.allowed import Allowed
from autosync.cluster import Cluster, Device, Node
from autosync.domain import Domain, Optimizer
from autosync.models import bundled
from autosync.profiling import profile_from_step_seconds
from autosync.simulator.limit import iteration_limit
from autosync.trials.contract import Workload
from autosync.trials.launchers.testbed_launcher import TestbedLauncher
from autosync.trials.pool.process_pool import ProcessPool
from benchmarks.measure import PairedRow, Way, paired, print_rows

GBPS = 23.9
"""Payload of 25 Gbit Ethernet: TCP carries at most 95.6 % of the wire rate at an MTU of 1500."""

RING_BYTES = Allowed(parameter_server=False, hierarchical=False, factors=False)
"""Dense gradients as a ring moves them, in any schedule."""


@dataclass(frozen=True, slots=True)
class Scales:
    """The testbed's byte and time scale. At s / k of 1/128 two cores carry 4 nodes at
    line rate: at twice that, slices of 4 MiB reach 70 to 85 % of it, here 92 to 97 %."""

    byte_scale: float
    time_scale: float
    slice_mib: float


SCALES = {
    "resnet50": Scales(1 / 8, 16, 1.5),
    "vgg16": Scales(1 / 32, 4, 8),
    "bert_base": Scales(1 / 32, 4, 8),
    "ncf_sparse": Scales(1 / 32, 4, 8),
}
"""Messages of about 256 KB on the emulated wire, whatever the model. ResNet-50 is the smallest: a
gradient that is wanted at once waits for the slice that is under way, and 4 MiB of its 98 take 4 %
of an iteration. With startups of 0.1 ms the timeline has slices of 2 and 1.5 MiB at 97 and 99 % of
the bound at rho = 1."""


def cluster(nodes: int = 4, ranks_per_node: int = 1) -> Cluster:
    return Cluster(
        f"{nodes}x{ranks_per_node}",
        tuple(
            Node(f"10.0.0.{i + 1}", (Device("v100", ranks_per_node),), GBPS, 10 * GBPS)
            for i in range(nodes)
        ),
    )


def ring_seconds(model_bytes: int, ranks: int) -> float:
    """An all-reduce of everything in one ring at line rate."""
    return 2 * (ranks - 1) / ranks * model_bytes * 8 / (GBPS * 1e9)


def domain_at(model: str, rho: float, on: Cluster | None = None) -> Domain:
    """The model with compute of (ring time / rho), shaped like a V100's."""
    graph = bundled(model)
    on = on or cluster()
    compute = ring_seconds(graph.size_bytes, on.world_size) / rho
    return Domain(
        graph, on, profile_from_step_seconds(graph, compute, "v100"), Optimizer("momentum")
    )


def ring_bound(domain: Domain) -> float:
    """No strategy with a ring's bytes iterates in less: `autosync.simulator.limit` over those."""
    return iteration_limit(domain, RING_BYTES).seconds


def compare(
    domain: Domain,
    scales: Scales,
    case: str,
    ways: Sequence[Way],
    rounds: int,
    bound_seconds: float | None = None,
    warmup: int = 2,
    note: str = "",
) -> list[PairedRow]:
    """A table of the ways in turn, of three iterations each, on a testbed."""
    with open_testbed(domain, scales) as pool:
        print(f"  {pool.description}{note}", flush=True)
        rows = paired(pool, domain, case, ways, rounds, 3, bound_seconds, warmup)
    print_rows(rows)
    return rows


def open_testbed(domain: Domain, scales: Scales, workload: str = "replay") -> ProcessPool:
    """Trials run once: pairing takes the place of the pool's own repetition."""
    launcher = TestbedLauncher(
        workloads=("ddp_buckets=benchmarks.ddp_buckets:build_ddp_buckets",), repeats=0
    )
    asked = Workload(domain, workload, scales.byte_scale, scales.time_scale)
    return launcher.open(asked)
