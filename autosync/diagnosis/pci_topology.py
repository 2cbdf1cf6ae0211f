"""How far a GPU is from a network port on its host, by the paths that Linux has of them.

A path such as `/sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0` names the host bridge, the
bridges and switches below it, and the device. The distances are those of `nvidia-smi topo -m`.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SYSFS = Path("/sys")
GPUS_OF_DRIVER = Path("/proc/driver/nvidia/gpus")
BRIDGE = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}")
FUNCTION = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
SWITCH, HOST_BRIDGE, NUMA_NODE, OTHER_NODE = range(4)
"""What a GPU and a port share at least: PIX or PXB, PHB, NODE and SYS."""


@dataclass(frozen=True, slots=True)
class PciDevice:
    """name: of a port, as NCCL's variables take it; of a GPU its address. path: in sysfs, without
    links. numa_node: None where the system does not say."""

    name: str
    path: str
    numa_node: int | None


@dataclass(frozen=True, slots=True)
class FarPort:
    """The nearest port that a rank's messages may take. nearer: a port beside the GPU that they may
    not; empty where the host has none."""

    gpu_node: int | None
    port: str
    port_node: int | None
    nearer: str


def distance(one: PciDevice, other: PciDevice) -> int | None:
    """The nearest of what both share; None where it cannot be told."""
    bridges, others = _bridges(one.path), _bridges(other.path)
    if not bridges or not others:
        return None
    if bridges[0] != others[0]:
        if one.numa_node is None or other.numa_node is None:
            return None
        return NUMA_NODE if one.numa_node == other.numa_node else OTHER_NODE
    below = bridges[1:2] == others[1:2] and len(bridges) > 1
    return SWITCH if below else HOST_BRIDGE


def _bridges(path: str) -> list[str]:
    """The host bridge, and the bridges below it, without the device itself; empty where the path is
    none of a PCI device."""
    parts = path.split("/")
    begin = next((i for i, part in enumerate(parts) if BRIDGE.fullmatch(part)), None)
    if begin is None:
        return []
    functions = [part for part in parts[begin + 1 :] if FUNCTION.fullmatch(part)]
    return [parts[begin], *functions[:-1]]


def far_port(gpu: PciDevice, ports: Sequence[PciDevice], taken: Iterable[str]) -> FarPort | None:
    """Where all ports that messages may take lie behind another host bridge than one that they
    may not, or at another NUMA node than the GPU. None where that is not so, or cannot be told.

    taken: names of these ports; of the others messages take none.
    """
    allowed = set(taken)
    far = [(way, port) for port in ports if (way := distance(gpu, port)) is not None]
    used = [each for each in far if each[1].name in allowed]
    if not used or len(far) < len(ports):
        return None
    way, port = min(used, key=lambda each: each[0])
    nearest_way, nearest = min(far, key=lambda each: each[0])
    nearer = nearest.name if nearest_way < way else ""
    if way == OTHER_NODE or (way == NUMA_NODE and nearer):
        return FarPort(gpu.numa_node, port.name, port.numa_node, nearer)
    return None


def matching_ports(stated: str, names: Iterable[str]) -> tuple[str, ...]:
    """Of the names those that NCCL_IB_HCA or NCCL_SOCKET_IFNAME allows: beginnings of names between
    commas, whole names behind `=`, all others behind `^`. Without a value all."""
    exclude, exact = stated.startswith("^"), "=" in stated[:2]
    listed = [part.partition(":")[0] for part in stated.lstrip("^=").split(",") if part]
    if not listed:
        return tuple(names)

    def is_listed(name: str) -> bool:
        return name in listed if exact else name.startswith(tuple(listed))

    return tuple(name for name in names if is_listed(name) is not exclude)


def rdma_ports(sysfs: Path = SYSFS) -> tuple[PciDevice, ...]:
    """InfiniBand and RoCE adapters with a port that is up."""
    folder = sysfs / "class" / "infiniband"
    found = []
    for adapter in sorted(folder.iterdir()) if folder.is_dir() else ():
        states = [_text(state) for state in adapter.glob("ports/*/state")]
        if any("ACTIVE" in state for state in states):
            found += _device(adapter.name, adapter / "device")
    return tuple(found)


def network_ports(names: Iterable[str], sysfs: Path = SYSFS) -> tuple[PciDevice, ...]:
    """Of these network interfaces those on the PCI bus."""
    folder = sysfs / "class" / "net"
    return tuple(port for name in names for port in _device(name, folder / name / "device"))


def gpu_of_uuid(uuid: str, driver: Path = GPUS_OF_DRIVER, sysfs: Path = SYSFS) -> PciDevice | None:
    """uuid: as torch has it, without `GPU-`. None where NVIDIA's driver does not list it."""
    for folder in sorted(driver.iterdir()) if driver.is_dir() else ():
        if uuid and f"GPU-{uuid}" in _text(folder / "information"):
            found = _device(folder.name, sysfs / "bus" / "pci" / "devices" / folder.name)
            return found[0] if found else None
    return None


def _device(name: str, link: Path) -> list[PciDevice]:
    if not link.exists():
        return []
    node = _text(link / "numa_node").strip()
    return [PciDevice(name, str(link.resolve()), int(node) if node.isdecimal() else None)]


def _text(file: Path) -> str:
    """Empty where it cannot be read."""
    with suppress(OSError):
        return file.read_text(errors="replace")
    return ""
