"""The `testbed` launcher: an emulated cluster of network namespaces with shaped links."""

from dataclasses import dataclass, field, replace

from autosync.cluster import Cluster
from autosync.errors import InvalidInput, NotSupported
from autosync.trials.automatic_scales import CORES_A_RANK, cores_a_rank
from autosync.trials.contract import OnWait, Workload
from autosync.trials.gpus import refuse_without_gpu
from autosync.trials.launchers.local_launcher import preload_for, refuse_dedicated_servers
from autosync.trials.machine import usable_cores
from autosync.trials.pool.local_place import LocalPlace
from autosync.trials.pool.machine_lock import shared_machine_lock
from autosync.trials.pool.process_pool import ProcessPool, usual_repeats
from autosync.trials.pool.worker_transport import WorkerTransport
from autosync.trials.request_names import SHORT_OF_CORES
from autosync.trials.testbed import namespaces
from autosync.trials.testbed.namespaces import Testbed
from autosync.trials.testbed.self_check import SelfCheck, check_testbed

CARRIED_GBPS = 8.0
"""Traffic of all nodes together that two cores carry (measured: 4 x 2 Gbit/s, 35 % busy)."""


@dataclass(frozen=True, slots=True)
class TestbedLauncher:
    """Every pool has a testbed of its own, that ends with it.

    workloads: `name=package.module:function` entries that requests may name.
    check: whether the testbed measures itself first, and refuses when a link is 5 % off.
    on_wait: is told where another pool measures on this machine for long.
    """

    __test__ = False  # not a test class, whatever its name

    workloads: tuple[str, ...] = ()
    repeats: int = field(default_factory=usual_repeats)
    check: bool = True
    name: str = "testbed"
    on_wait: OnWait | None = None

    def with_wait_reports(self, on_wait: OnWait) -> "TestbedLauncher":
        return replace(self, on_wait=on_wait)

    def open(self, workload: Workload) -> ProcessPool:
        """Build the testbed of the workload's cluster at its scales.

        Raises:
            NotSupported: this machine cannot; the message says what would make it. Or NCCL is
                to move the messages.
            InaccurateLink: a link, or an all-reduce, is not as fast as the file says, or cannot be
                measured.
            InvalidInput: the scaled links exceed what this machine's cores carry; or as
                `namespaces.up`.
        """
        cluster = workload.domain.cluster
        refuse_dedicated_servers(workload)
        refuse_excess(workload)
        refuse_unshaped_gpus(workload)
        testbed = namespaces.up(cluster, workload.byte_scale, workload.time_scale)
        try:
            checked = self._checked(testbed, cluster)
        except BaseException:  # an interrupt, too, leaves no testbed
            namespaces.down(testbed)
            raise
        nodes = [int(node) for node in cluster.node_of_server()[: cluster.world_size]]
        preload = preload_for(workload)

        def close() -> None:
            try:
                if preload:
                    preload.close()
            finally:
                namespaces.down(testbed)

        transport = WorkerTransport(
            workload=workload,
            place=description(testbed, workload, checked, usable_cores()),
            places=tuple(
                LocalPlace(testbed.prefix(node), "eth0", node, testbed.namespaces(node), preload)
                for node in nodes
            ),
            host=testbed.addresses[nodes[0]],
            links="shaped",
            workloads=self.workloads,
            machine_lock=shared_machine_lock(),
            on_wait=self.on_wait,
        )
        return ProcessPool(transport, self.repeats, close)

    def _checked(self, testbed: Testbed, cluster: Cluster) -> SelfCheck | None:
        """What the links really carry, measured while no other pool measures on this machine."""
        if not self.check:
            return None
        with shared_machine_lock().held(on_wait=self.on_wait):
            return check_testbed(testbed, cluster)


def refuse_excess(workload: Workload) -> None:
    """Raises InvalidInput when the scaled links ask for more than `CARRIED_GBPS`."""
    total = sum(node.bandwidth_gbps for node in workload.domain.cluster.nodes)
    total *= workload.byte_scale / workload.time_scale
    if total > CARRIED_GBPS:
        raise InvalidInput(
            f"the testbed's links would carry {total:.1f} Gbit/s together at s = "
            f"{workload.byte_scale:g}, k = {workload.time_scale:g}; two cores carry about "
            f"{CARRIED_GBPS:g}.",
            thing="byte_scale",
            value=workload.byte_scale,
            remedy="Use a smaller byte scale or a larger time scale (`automatic_scales`)."
            if workload.compute == "waited"
            else "Kernels cannot be scaled: use the launcher local, or compute waited.",
        )


def refuse_unshaped_gpus(workload: Workload) -> None:
    """Raises NotSupported where messages would not pass the links, or no GPU is to be had."""
    if workload.backend == "nccl":
        raise NotSupported(
            "NCCL moves messages between the GPUs of one machine past a testbed's links.",
            thing="cluster.backend",
            value="nccl",
            remedy="Write `backend: gloo` into the cluster file, or use the launcher local.",
        )
    if workload.device == "cuda":
        refuse_without_gpu()


def description(testbed: Testbed, workload: Workload, checked: SelfCheck | None, cores: int) -> str:
    """What reports repeat: size, scales, accuracy, what ranks lack of this machine's `cores`, and
    what is not emulated."""
    shared = any(node.ranks > 1 for node in workload.domain.cluster.nodes)
    parts = [
        f"testbed ({len(testbed.addresses)} nodes",
        f"s = {workload.byte_scale:g}, k = {workload.time_scale:g}",
        f"links within {checked.largest_error:.1%} of the file" if checked else "links unmeasured",
        *([f"intra-node links {testbed.loopback}"] if shared else []),
        *cores_words(workload, cores),
        f"{latency_words(checked)})",
    ]
    return ", ".join(parts)


def cores_words(workload: Workload, cores: int) -> list[str]:
    """What each rank has of this machine, where that is less than hosts of GPU clusters have. Only
    where compute is waited for: beside kernels no time scale helps."""
    has = cores_a_rank(workload.domain.world_size, cores, workload.time_scale)
    if has >= CORES_A_RANK or workload.compute != "waited":
        return []
    return [f"{SHORT_OF_CORES} ({has:.2g} a rank)"]


def latency_words(checked: SelfCheck | None) -> str:
    """One way between two nodes, median and worst, in the testbed's own time."""
    found = checked.latency_seconds if checked else None
    if found is None:
        return "latency not emulated"
    usual, longest = (seconds * 1e6 for seconds in found)
    return f"latency {usual:.0f} us, at worst {longest:.0f} us, not emulated"
