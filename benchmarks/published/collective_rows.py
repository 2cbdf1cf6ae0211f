"""The published sweeps of nccl-tests, each with the cluster that its columns describe."""

import re
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from autosync.cluster import Cluster, Device, Node, Transport
from autosync.cluster.link_rates import gpu_payload_gbps, nic_payload_gbps
from autosync.nccl_knobs import NcclKnobs
from autosync.simulator.backends.nccl import Forced
from autosync.simulator.topology import Topology, topology_of
from benchmarks.output import measurements

F64 = NDArray[np.float64]

DEVICE_OF = {
    "A100-SXM4-40GB": "a100",
    "A100-SXM4": "a100",
    "A100": "a100",
    "A100-SXM4-80GB": "a100-80gb",
    "A100-PCIe-80GB": "a100-80gb",
    "H100-SXM5-80GB": "h100",
    "H100-PCIe": "h100-pcie",
    "B200": "b200",
    "GB200": "gb200",
    "V100-SXM2-16GB": "v100",
    "V100-SXM2-32GB": "v100",
    "V100-32GB": "v100",
    "H200": "h200",
    "H100": "h100",
    "RTX 4090": "rtx-4090",
    "RTX 2080 Ti": "rtx-2080-ti",
}
GUESSED = {"gh200_slingshot_2n": "gh200", "aws_karpenter_sock": "t4"}
"""Types of GPUs that a sweep does not state, of which little depends."""
TRANSPORT_OF: dict[str, Transport] = {
    "": "",
    "none": "",
    "EFA": "efa",
    "TCP": "tcp",
    "GPUDirect-TCPX": "gpudirect-tcpx",
    "GPUDirect-TCPXO": "gpudirect-tcpxo",
    "RoCE": "roce",
    "InfiniBand": "infiniband",
    "Slingshot": "slingshot",
}
SMALL_BYTES, LARGEST_BYTES = 2.0**16, 2.0**34
SOCKET_BYTES = 2.0**27
"""Of statements on sockets, which name sizes from 8 to 128 MB, or no largest one."""
ONLY_SMALL = ("coreweave_a100_16n",)
"""Sweeps whose NICs are not stated: nothing below SMALL_BYTES depends on them."""
ONE_PROCESS = ("-g 2", "-g 8", "1 process of 4 GPUs", "columns removed by the author")
"""Notes of sweeps whose one process drives several GPUs: their launches take it 30 us and more."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One run of nccl-tests.

    family: of systems that are one machine, on one node or several: they are left out together.
    size_bytes, seconds f64[n]. complete: the columns say all that a prediction needs; else `why`.
    one_process: a single process drives all GPUs of a node, whose launches are a floor.
    """

    name: str
    system: str
    family: str
    operation: str
    topology: Topology
    forced: Forced
    size_bytes: F64
    seconds: F64
    one_process: bool
    trust: str
    why: str

    @property
    def complete(self) -> bool:
        return not self.why

    @property
    def bus_factor(self) -> float:
        """By which nccl-tests multiply bytes over seconds for the bus bandwidth."""
        n = self.topology.ranks
        return {
            "all_reduce": 2 * (n - 1) / n,
            "all_gather": (n - 1) / n,
            "reduce_scatter": (n - 1) / n,
        }.get(self.operation, 1.0)


@cache
def read_sweeps() -> tuple[Sweep, ...]:
    """The sweeps of datasets/measurements/collectives.csv, in its order."""
    records = measurements("collectives.csv")
    names = dict.fromkeys(record["sweep_id"] for record in records)
    return tuple(_sweep([each for each in records if each["sweep_id"] == name]) for name in names)


def _sweep(records: list[dict[str, str]]) -> Sweep:
    first = records[0]
    rows = [(float(each["size_bytes"]), float(each["time_us"]) * 1e-6) for each in records]
    sizes, seconds = np.array(rows).T
    if first["sweep_id"] in ONLY_SMALL:
        sizes, seconds = sizes[sizes < SMALL_BYTES], seconds[sizes < SMALL_BYTES]
    return Sweep(
        name=first["sweep_id"],
        system=first["system"],
        family=family_of(first["system"]),
        operation=first["op"],
        topology=topology_of(cluster_of(first)),
        forced=Forced(algorithm=first["algo"], protocol=first["proto"]),
        size_bytes=sizes,
        seconds=seconds,
        one_process=any(words in first["notes"] for words in ONE_PROCESS),
        trust=first["trust"],
        why=_what_is_missing(first),
    )


def _what_is_missing(record: dict[str, str]) -> str:
    if record["gpu"] not in DEVICE_OF and record["sweep_id"] not in GUESSED:
        return "its GPUs are not stated"
    if record["sweep_id"] in ("aws_karpenter_sock", *ONLY_SMALL):
        return ""  # the rate of its one connection is far below any NIC's
    if record["nodes"] != "1" and not record["nic_gbps"] and "NVL72" not in record["intra"]:
        return "its NICs are not stated"
    if record["sweep_id"] == "tcp100_v100_4n":
        return "its sockets collapsed, by settings that the author gives up"
    return ""


@cache
def read_statements() -> tuple[Sweep, ...]:
    """Bandwidths of one node that datasets/measurements/statements.csv states, as sweeps of one
    size."""
    found = (_statement(record) for record in measurements("statements.csv"))
    return tuple(sweep for sweep in found if sweep is not None)


def _statement(record: dict[str, str]) -> Sweep | None:
    """None for what is no bandwidth of one node of a known GPU."""
    known = record["gpu"] in DEVICE_OF and record["nodes"] == "1" and "PCIe" not in record["system"]
    if not known or record["unit"] != "GB/s busbw" or "NVLink pairs" in record["system"]:
        return None
    ring = any(words in record["condition"] for words in ("disabled", "ring /"))
    sweep = _of_one_size(
        record,
        f"{record['gpus_per_node']} GPUs, {record['condition']}",
        topology_of_statement(record),
        float(record["size_bytes"] or LARGEST_BYTES),
        float(record["value"]),
    )
    return replace(sweep, forced=Forced("Ring" if ring else ""))


def _of_one_size(
    record: dict[str, str], what: str, topology: Topology, size_bytes: float, gbytes: float
) -> Sweep:
    """A row of statements.csv. gbytes: its bus bandwidth in GB/s."""
    sweep = Sweep(
        name=f"{record['system']}, {what}",
        system=record["system"],
        family=family_of(record["system"]),
        operation=record["op"],
        topology=topology,
        forced=Forced(),
        size_bytes=np.array([size_bytes]),
        seconds=np.zeros(1),
        one_process=False,
        trust=record["trust"],
        why="",
    )
    return replace(sweep, seconds=sweep.bus_factor * sweep.size_bytes / (gbytes * 1e9))


def family_of(system: str) -> str:
    """The system without how many nodes of it ran."""
    return re.sub(r" \(.*?\)| x\d+.*", "", system)


def topology_of_statement(record: dict[str, str]) -> Topology:
    """Of a row of statements.csv, which has no sweep and no NICs."""
    missing = {
        "sweep_id": record["system"],
        "nics_per_node": "",
        "intra": record["intra"] or "NVSwitch",
    }
    return topology_of(cluster_of({**record, **missing}))


def cluster_of(record: dict[str, str]) -> Cluster:
    """The cluster file that somebody would write for a sweep's columns."""
    device = DEVICE_OF.get(record["gpu"]) or GUESSED.get(record["sweep_id"], "rtx-2080-ti")
    nodes, gpus, intra = int(record["nodes"]), int(record["gpus_per_node"]), record["intra"]
    if "NVL72" in intra:  # one NVLink domain, which NCCL treats like a node
        nodes, gpus = 1, nodes * gpus
    bridged = "bridge" in intra and gpus > 2  # pairs, between which a ring passes the slots
    linked = ("NVLink" in intra or "NVSwitch" in intra) and not bridged
    between = record["transport"].split(" ")[0] if nodes > 1 else ""
    nics, rate = int(record["nics_per_node"] or 1), float(record["nic_gbps"] or 25.0)

    def node(place: int) -> Node:
        return Node(
            address=f"10.0.0.{place}",
            devices=(Device(device, gpus),),
            bandwidth_gbps=nic_payload_gbps(nics, rate, TRANSPORT_OF[between]),
            intra_bandwidth_gbps=gpu_payload_gbps((device,), "nvlink" if linked else "pcie"),
            nics=nics,
            nic_gbps=rate,
            nvswitch="NVSwitch" in intra or "NVL72" in intra,
            gpu_link="nvlink" if linked else "pcie",
        )

    return Cluster(
        name=record["sweep_id"],
        nodes=tuple(node(place) for place in range(1, nodes + 1)),
        backend="nccl",
        transport=TRANSPORT_OF[between],
        nccl_version=record["nccl_version"],
    )


COLLAPSED = "tcp100_v100_4n"
WHOLE_BYTES = 2.0**24
"""Up to which its sockets carry what they can."""
SET_A_PRIOR = "issues/209"
"""The source of the prior of a rank's threads: its nodes of one GPU."""


def read_socket_rows() -> tuple[Sweep, ...]:
    """What collectives over TCP sockets at 25 to 100 Gbit/s reached, as sources state it, with
    their threads and sockets. `why` names those that set a prior, so that they cannot judge it."""
    found = [
        _socket_row(row)
        for row in measurements("statements.csv")
        if row["transport"] == "TCP socket" and row["nodes"] and row["gpus_per_node"]
    ]
    collapsed = next(sweep for sweep in read_sweeps() if sweep.name == COLLAPSED)
    whole = collapsed.size_bytes <= WHOLE_BYTES
    found.append(
        replace(
            collapsed,
            topology=replace(collapsed.topology, nccl=NcclKnobs(socket_threads=2)),
            size_bytes=collapsed.size_bytes[whole],
            seconds=collapsed.seconds[whole],
            why="",
        )
    )
    return tuple(found)


def _socket_row(record: dict[str, str]) -> Sweep:
    """Of a statement; of a range its middle."""
    condition = record["condition"]
    threads = re.search(r"NTHREADS=(\d+)|(\d+) thread", condition)
    sockets = re.search(r"NSOCKS_PERTHREAD=(\d+)|(\d+) socket", condition)
    assert threads
    assert sockets
    each, per_thread = int(threads[1] or threads[2]), int(sockets[1] or sockets[2])
    knobs = NcclKnobs(socket_threads=each, sockets_per_thread=per_thread)
    missing = {"sweep_id": record["system"], "gpu": record["gpu"] or "V100-32GB"}
    missing["nccl_version"] = record["nccl_version"].partition("ms")[0]  # a preview
    topology = topology_of(cluster_of({**record, **missing, "intra": "NVLink"}))
    ends = [float(each) for each in record["value"].split(" to ")]
    gbytes = sum(ends) / len(ends) / (8 if record["unit"].startswith("Gbit/s") else 1)
    is_prior = SET_A_PRIOR in record["source"] and record["gpus_per_node"] == "1"
    where = replace(topology, nccl=knobs)
    sweep = _of_one_size(record, condition, where, SOCKET_BYTES, gbytes)
    return replace(sweep, why="set a prior" if is_prior else "")
