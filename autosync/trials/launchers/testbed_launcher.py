"""The `testbed` launcher: an emulated cluster of network namespaces with shaped links."""

from dataclasses import dataclass
from typing import ClassVar

from autosync.errors import InvalidInput, NotSupported
from autosync.trials.contract import Workload
from autosync.trials.gpus import refuse_fewer_gpus, shared_gpu_environment, socket_environment
from autosync.trials.launchers.local_launcher import (
    MachineLauncher,
    refuse_dedicated_servers,
)
from autosync.trials.machine import usable_cores
from autosync.trials.pool.machine_lock import shared_machine_lock
from autosync.trials.pool.process_pool import ProcessPool
from autosync.trials.request_names import SHORT_OF_CORES
from autosync.trials.scales import CORES_A_RANK, cores_a_rank
from autosync.trials.testbed import namespaces
from autosync.trials.testbed.link_shaping import INTERFACE
from autosync.trials.testbed.namespaces import Testbed
from autosync.trials.testbed.self_check import InaccurateLink, SelfCheck, check_testbed
from autosync.units import scales_in_words

CARRIED_GBPS_A_CORE = 4.0
"""Traffic of all nodes together (measured: two cores carry 4 x 2 Gbit/s, 35 % busy)."""


@dataclass(frozen=True, slots=True)
class TestbedLauncher(MachineLauncher):
    """Every pool has a testbed of its own, that ends with it. Trials that compute on a GPU send as
    the cluster file says, by gloo or NCCL, through sockets on the testbed's links.

    check: whether the testbed measures itself first, and refuses when a link is 5 % off.
    """

    __test__ = False  # not a test class, whatever its name
    name: ClassVar[str] = "testbed"

    check: bool = True

    def open(self, workload: Workload) -> ProcessPool:
        """Build the testbed of the workload's cluster at its scales.

        Raises:
            NotSupported: this machine cannot; the message says what would make it. Or NCCL is
                to move the messages of several GPUs of a node.
            InaccurateLink: a link, or an all-reduce, is not as fast as the file says, or cannot be
                measured; NotSupported beside kernels, which no other scale goes with.
            InvalidInput: the scaled links exceed what this machine's cores carry; or as
                `namespaces.up`.
        """
        cluster = workload.domain.cluster
        refuse_dedicated_servers(workload)
        refuse_excess(workload, usable_cores())
        refuse_direct_links(workload)
        if workload.device == "cuda":
            refuse_fewer_gpus(workload.domain.world_size, self.share_gpus)
        testbed = namespaces.up(cluster, workload.byte_scale, workload.time_scale)
        try:
            checked = self._checked(testbed, workload)
        except BaseException:  # an interrupt, too, leaves no testbed
            namespaces.down(testbed)
            raise
        nodes = [int(node) for node in cluster.node_of_server()[: cluster.world_size]]
        return self.pool(
            workload,
            place=description(testbed, workload, checked, usable_cores()),
            entries=[(testbed.prefix(node), testbed.namespaces(node)) for node in nodes],
            interface=INTERFACE,
            host=testbed.addresses[nodes[0]],
            links="shaped",
            nccl=shared_gpu_environment if self.share_gpus else socket_environment,
            on_close=lambda: namespaces.down(testbed),
        )

    def _checked(self, testbed: Testbed, workload: Workload) -> SelfCheck | None:
        """What the links really carry, measured while no other pool measures on this machine."""
        if not self.check:
            return None
        try:
            with shared_machine_lock().held(on_wait=self.on_wait):
                return check_testbed(testbed, workload.domain.cluster)
        except InaccurateLink as error:
            if workload.compute == "waited":
                raise
            raise NotSupported(
                f"{error.message} Beside kernels nothing can be scaled.",
                thing=error.thing,
                value=error.value,
                remedy=f"Stop what else loads this machine. {UNSCALED}",
            ) from None


UNSCALED = "If it cannot carry these rates, use the launcher local, or compute waited."


def refuse_excess(workload: Workload, cores: int) -> None:
    """
    Raises:
        InvalidInput: the scaled links need more than this machine's cores carry.
        NotSupported: they do, beside kernels, which no scale goes with.
    """
    gbps = sum(node.bandwidth_gbps for node in workload.domain.cluster.nodes)
    gbps *= workload.byte_scale / workload.time_scale
    if gbps <= cores * CARRIED_GBPS_A_CORE:
        return
    carry = f"{cores} cores carry about {cores * CARRIED_GBPS_A_CORE:g}"
    would = f"the testbed's links would carry {gbps:.1f} Gbit/s together"
    if workload.compute == "kernels":
        raise NotSupported(
            f"{would}; {carry}, and beside kernels nothing can be scaled.",
            thing="compute",
            value=workload.compute,
            remedy=UNSCALED,
        )
    raise InvalidInput(
        f"{would} at byte scale {workload.byte_scale:g} and time scale {workload.time_scale:g}; "
        f"{carry}.",
        thing="byte_scale",
        value=workload.byte_scale,
        remedy="Use a smaller byte scale or a larger time scale (`automatic_scales`).",
    )


def refuse_direct_links(workload: Workload) -> None:
    """Raises NotSupported where NCCL would use links that no testbed has."""
    for node in workload.domain.cluster.nodes:
        if workload.backend == "nccl" and node.ranks > 1:
            raise NotSupported(
                f"node {node.address!r} has {node.ranks} GPUs: NCCL joins those of a node by "
                "NVLink, PCIe or shared memory, which a testbed does not emulate.",
                thing=f"node {node.address}, devices",
                value=node.ranks,
                remedy="Use a cluster file whose nodes have one GPU each, or the launcher local.",
            )


def description(testbed: Testbed, workload: Workload, checked: SelfCheck | None, cores: int) -> str:
    """What reports repeat: size, scales, accuracy, what ranks lack of this machine's `cores`, and
    what is not emulated."""
    shared = any(node.ranks > 1 for node in workload.domain.cluster.nodes)
    scales = scales_in_words(workload.byte_scale, workload.time_scale)
    parts = [
        f"testbed ({len(testbed.addresses)} nodes",
        *([scales] if scales else []),
        f"link rates within {checked.largest_error:.1%} of the cluster file"
        if checked
        else "link rates not measured",
        *([f"intra-node links {testbed.loopback}"] if shared else []),
        *cores_words(workload, cores),
        f"{latency_words(checked)})",
    ]
    return ", ".join(parts)


def cores_words(workload: Workload, cores: int) -> list[str]:
    """What each rank has of this machine, where that is less than hosts of GPU clusters have. Only
    where compute is waited for: beside kernels no time scale helps."""
    has = cores_a_rank(workload.domain.world_size, cores, workload.time_scale)
    if round(has, 1) >= CORES_A_RANK or workload.compute != "waited":  # k is written in decimals
        return []
    return [f"{SHORT_OF_CORES} ({has:.2g} a rank)"]


def latency_words(checked: SelfCheck | None) -> str:
    """One way between two nodes, median and worst, in the testbed's own time."""
    found = checked.latency_seconds if checked else None
    if found is None:
        return "latency not emulated"
    usual, longest = (seconds * 1e6 for seconds in found)
    return f"latency {usual:.0f} us, at worst {longest:.0f} us, not emulated"
