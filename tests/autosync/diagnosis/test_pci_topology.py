"""Distances of GPUs from network ports, from paths as sysfs has them."""

from pathlib import Path

import pytest

from autosync.diagnosis.pci_topology import (
    HOST_BRIDGE,
    NUMA_NODE,
    OTHER_NODE,
    SWITCH,
    FarPort,
    PciDevice,
    distance,
    far_port,
    gpu_of_uuid,
    matching_ports,
    network_ports,
    rdma_ports,
)

# A host of two processors. The first has a switch with the GPU and a port, another port below the
# same host bridge, and one below a second bridge; the other processor has one more port.
BUS = "/sys/devices/pci0000:40"
GPU = PciDevice("0000:43:00.0", f"{BUS}/0000:40:01.1/0000:41:00.0/0000:42:00.0/0000:43:00.0", 0)
BESIDE = PciDevice("mlx5_0", f"{BUS}/0000:40:01.1/0000:41:00.0/0000:42:01.0/0000:44:00.0", 0)
SAME_BRIDGE = PciDevice("mlx5_1", f"{BUS}/0000:40:03.1/0000:45:00.0", 0)
SAME_NODE = PciDevice("mlx5_2", "/sys/devices/pci0000:60/0000:60:01.1/0000:61:00.0", 0)
OTHER = PciDevice("mlx5_3", "/sys/devices/pci0000:c0/0000:c0:01.1/0000:c1:00.0", 1)
VIRTUAL = PciDevice("eth0", "/sys/devices/virtual/net/eth0", None)
ALL = (BESIDE, SAME_BRIDGE, SAME_NODE, OTHER)


@pytest.mark.parametrize(
    ("port", "shared"),
    [
        (BESIDE, SWITCH),
        (SAME_BRIDGE, HOST_BRIDGE),
        (SAME_NODE, NUMA_NODE),
        (OTHER, OTHER_NODE),
        (VIRTUAL, None),
        (PciDevice("x", OTHER.path, None), None),
    ],
)
def test_what_a_gpu_shares_with_a_port(port: PciDevice, shared: int | None) -> None:
    assert distance(GPU, port) == distance(port, GPU) == shared


def test_a_port_on_the_root_bus_shares_the_host_bridge_alone() -> None:
    on_root = PciDevice("eno1", f"{BUS}/0000:40:05.0", 0)
    assert distance(GPU, on_root) == HOST_BRIDGE


@pytest.mark.parametrize(
    ("ports", "taken", "found"),
    [
        (ALL, "mlx5_0 mlx5_3", None),  # NCCL takes the nearer of the two
        (ALL, "mlx5_1", None),  # on the way to the processor both share
        (ALL, "mlx5_2", FarPort(0, "mlx5_2", 0, "mlx5_0")),
        (ALL, "mlx5_3", FarPort(0, "mlx5_3", 1, "mlx5_0")),
        ((SAME_NODE, OTHER), "mlx5_2", None),  # there is none that is nearer
        ((OTHER,), "mlx5_3", FarPort(0, "mlx5_3", 1, "")),
        ((*ALL, VIRTUAL), "mlx5_3", None),  # where one is cannot be told
        (ALL, "", None),
    ],
)
def test_a_port_is_far_where_a_nearer_one_is_left_out_or_none_is_near(
    ports: tuple[PciDevice, ...], taken: str, found: FarPort | None
) -> None:
    assert far_port(GPU, ports, taken.split()) == found


@pytest.mark.parametrize(
    ("stated", "taken"),
    [
        ("", "mlx5_0 mlx5_1 mlx5_10"),
        ("mlx5_1", "mlx5_1 mlx5_10"),
        ("=mlx5_1:1", "mlx5_1"),
        ("^mlx5_1", "mlx5_0"),
        ("^=mlx5_1,mlx5_0", "mlx5_10"),
    ],
)
def test_the_ports_that_nccl_may_take(stated: str, taken: str) -> None:
    assert matching_ports(stated, ("mlx5_0", "mlx5_1", "mlx5_10")) == tuple(taken.split())


def test_devices_are_read_from_the_system(tmp_path: Path) -> None:
    """A copy of the links and files that Linux and NVIDIA's driver have."""
    sysfs, driver = tmp_path / "sys", tmp_path / "gpus"
    gpu, port, down = (
        sysfs / "devices" / place
        for place in (
            "pci0000:40/0000:40:01.1/0000:41:00.0",
            "pci0000:40/0000:40:03.1/0000:45:00.0",
            "pci0000:c0/0000:c0:01.1/0000:c1:00.0",
        )
    )
    for device, node in ((gpu, "0\n"), (port, "0\n"), (down, "-1\n")):
        device.mkdir(parents=True)
        (device / "numa_node").write_text(node)
    (sysfs / "bus" / "pci" / "devices").mkdir(parents=True)
    (sysfs / "bus" / "pci" / "devices" / gpu.name).symlink_to(gpu)
    for name, device, state in (("mlx5_0", port, "4: ACTIVE"), ("mlx5_1", down, "1: DOWN")):
        adapter = sysfs / "class" / "infiniband" / name
        (adapter / "ports" / "1").mkdir(parents=True)
        (adapter / "ports" / "1" / "state").write_text(f"{state}\n")
        (adapter / "device").symlink_to(device)
    for name in ("ib0", "lo"):
        (sysfs / "class" / "net" / name).mkdir(parents=True)
    (sysfs / "class" / "net" / "ib0" / "device").symlink_to(port)
    for address, uuid in ((gpu.name, "GPU-5a-1"), ("0000:42:00.0", "GPU-5a-2")):
        (driver / address).mkdir(parents=True)
        (driver / address / "information").write_text(f"Model:\tX\nGPU UUID:\t{uuid}\n")

    (found,) = rdma_ports(sysfs)
    assert (found.name, found.path, found.numa_node) == ("mlx5_0", str(port), 0)
    assert network_ports(["ib0", "lo", "gone"], sysfs) == (PciDevice("ib0", str(port), 0),)
    seen = gpu_of_uuid("5a-1", driver, sysfs)
    assert seen == PciDevice(gpu.name, str(gpu), 0)
    assert distance(seen, found) == HOST_BRIDGE
    assert gpu_of_uuid("5a-2", driver, sysfs) is None  # sysfs does not have it
    assert gpu_of_uuid("", driver, sysfs) is None
    assert rdma_ports(tmp_path / "none") == ()
    assert gpu_of_uuid("5a-1", tmp_path / "none", sysfs) is None
