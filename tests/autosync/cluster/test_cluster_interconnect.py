"""What a cluster file says of NICs, NVSwitches, transports and measured collectives."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autosync.cluster import Cluster, Device, Node
from autosync.cluster.cluster_file import load_cluster, parse_cluster, save_cluster
from autosync.cluster.collective_curve import CollectiveCurve
from autosync.cluster.devices import DEVICE_TYPES
from autosync.documents import from_data, to_data
from autosync.errors import InvalidInput

PORTS = "nvswitch: true, nics: 32, nic_gbps: 100, rails: true"
RENTED = f"""
name: rented
backend: nccl
transport: efa
oversubscription: 2
nccl_version: "2.21.5"
nodes:
  - {{address: a, devices: [{{type: h100, count: 8}}], {PORTS}}}
  - {{address: b, devices: [{{type: h100, count: 8}}], {PORTS}}}
"""
CURVE = CollectiveCurve("all_reduce", 16, 2, (8.0, 1024.0), (3e-5, 4e-5))


def test_a_file_says_the_interconnect_briefly(tmp_path: Path) -> None:
    cluster = parse_cluster(RENTED, "mine.yaml")
    node = cluster.nodes[0]
    assert (node.nvswitch, node.nics, node.nic_gbps, node.rails) == (True, 32, 100.0, True)
    assert node.bandwidth_gbps == pytest.approx(3200 * 0.97)
    assert node.intra_bandwidth_gbps == pytest.approx(3600 * 0.78)
    assert (cluster.transport, cluster.oversubscription) == ("efa", 2.0)
    assert cluster.nccl_version == "2.21.5"
    save_cluster(cluster, tmp_path / "saved.yaml")
    assert load_cluster(tmp_path / "saved.yaml") == cluster


def test_what_a_file_states_counts_before_what_its_nics_carry() -> None:
    stated = RENTED.replace("rails: true", "bandwidth_gbps: 2000, intra_bandwidth_gbps: 900")
    node = parse_cluster(stated, "mine.yaml").nodes[0]
    assert (node.bandwidth_gbps, node.intra_bandwidth_gbps) == (2000.0, 900.0)


def test_tcp_carries_less_of_a_port_than_rdma() -> None:
    by_tcp = parse_cluster(RENTED.replace("transport: efa", "transport: tcp"), "mine.yaml")
    assert by_tcp.nodes[0].bandwidth_gbps == pytest.approx(3200 * 0.956)


def test_a_file_that_says_nothing_of_it_keeps_its_identity() -> None:
    plain = load_cluster("rtx-2080-ti-4x4-ib100")
    data = to_data(plain)
    new = {"nvswitch", "nic_gbps", "rails", "gpu_link", "transport", "oversubscription"}
    assert not (new | {"nccl_version", "curves"}) & {*data, *data["nodes"][0]}
    assert plain.id == "6d064dc977a5f04b8a8cef80d4deebef"


def test_a_curve_is_read_as_it_is_written() -> None:
    cluster = replace(parse_cluster(RENTED, "mine.yaml"), curves=(CURVE,))
    assert from_data(Cluster, to_data(cluster)) == cluster
    assert "algorithm" not in to_data(cluster)["curves"][0]
    assert cluster.on_backend("gloo").curves == ()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"ranks": 1}, "ranks must be 2 or more"),
        ({"ranks": 10**9, "nodes": 10**9}, "at most 131072"),
        ({"nodes": 17}, "as many as nodes or more"),
        ({"nodes": 0}, "as many as nodes or more"),
        ({"sizes_bytes": (), "seconds": ()}, "sizes_bytes must be 1 to 256 sizes, got 0"),
        ({"seconds": (1e-5,)}, "seconds must be one for each size, got 1"),
        ({"sizes_bytes": (8.0, 8.0)}, "sizes_bytes must be positive and ascending"),
        ({"sizes_bytes": (0.0, 8.0)}, "sizes_bytes must be positive and ascending"),
        ({"seconds": (0.0, 1.0)}, "seconds must be positive"),
        ({"seconds": (1.0, float("inf"))}, "seconds must be positive"),
    ],
)
def test_a_curve_that_cannot_be_is_named(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match="the curve of all_reduce of") as caught:
        replace(CURVE, **changed)
    assert words in caught.value.message
    assert "cluster calibrate" in caught.value.remedy


def test_one_collective_has_one_curve() -> None:
    cluster = parse_cluster(RENTED, "mine.yaml")
    ring = replace(CURVE, algorithm="ring")
    assert replace(cluster, curves=(CURVE, ring)).curves == (CURVE, ring)
    with pytest.raises(InvalidInput, match="two curves are of all_reduce of 16 ranks on 2 nodes"):
        replace(cluster, curves=(CURVE, replace(CURVE, seconds=(1.0, 2.0))))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("nic_gbps: 100", "nic_gbps: -1", "nic_gbps must be 0 or more"),
        ("nic_gbps: 100", "nic_gbps: fast", "nic_gbps must be a number"),
        (", nic_gbps: 100", "", "Or state nics and nic_gbps"),
        ("rails: true", "bandwidth_gbps: 3300", "must not exceed the 3200 of 32 x 100 Gbit/s"),
        ("rails: true", "gpu_link: pcie", "gpu_link contradicts nvswitch"),
        ("rails: true", "gpu_link: sli", "gpu_link"),
        ("type: h100", "type: l4", "nvswitch joins NVLinks, and a l4 has none"),
        ("oversubscription: 2", "oversubscription: 0.5", "oversubscription must be 1 or more"),
        ("oversubscription: 2", "oversubscription: many", "oversubscription must be a number"),
        ('"2.21.5"', "2.2", "nccl_version is the number 2.2"),
        ('"2.21.5"', "new", "nccl_version is no version"),
        ("transport: efa", "transport: pigeon", "transport"),
    ],
)
def test_an_interconnect_that_cannot_be_is_refused(old: str, new: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_cluster(RENTED.replace(old, new), "mine.yaml")
    assert words in str(caught.value)


def test_gpus_are_joined_as_their_type_is_unless_the_node_says_otherwise() -> None:
    def kind(device_type: str, **said: Any) -> str:
        return Node("a", (Device(device_type, 8),), 100.0, 900.0, **said).gpu_link_kind

    assert (kind("h100"), kind("l4"), kind("rtx-3090")) == ("nvlink", "pcie", "pcie")
    assert kind("rtx-3090", gpu_link="nvlink") == "nvlink"
    assert kind("a100", gpu_link="pcie") == "pcie"


def test_generations_go_by_what_a_link_carries() -> None:
    by_generation = {2: (200.0,), 3: (200.0, 112.5), 4: (200.0,), 5: (400.0,)}
    for name, device in DEVICE_TYPES.items():
        if not device.nvlinks:
            assert device.nvlink_generation == 0, name
            continue
        assert device.nvlink_gbps in by_generation[device.nvlink_generation], name
    assert DEVICE_TYPES["h100"].nvlink_bytes_per_second == 450e9
