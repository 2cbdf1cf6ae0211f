"""AutoDist's resource specifications."""

import pytest

from autosync.errors import InvalidInput
from autosync.interop.host_clusters import HostHardware, cluster_of_hosts, notes_on_hosts
from autosync.interop.resource_spec import Hardware, hosts_of_spec, read_resource_spec

T4 = Hardware("t4", 48.0)

TWO_NODES = """
nodes:
  - address: 10.20.41.54
    cpus: [0]
    gpus: [2, 3]
    chief: true
    network_bandwidth: 25
  - address: 10.20.41.55
    gpus: [0]
    ssh_config: conf
    network_bandwidth: 10
  - address: 10.20.41.56
    cpus: [0, 1]
    network_bandwidth: 40
ssh:
  conf: {username: autodist}
"""


def test_gpus_are_ranks_and_a_host_without_is_a_server() -> None:
    spec = read_resource_spec(TWO_NODES, "spec", T4)
    assert [node.ranks for node in spec.cluster.nodes] == [2, 1, 0]
    assert [node.bandwidth_gbps for node in spec.cluster.nodes] == [23.9, 9.56, 38.24]
    assert spec.cluster.backend == "nccl"
    assert spec.devices.ranks == {
        "10.20.41.54:GPU:2": 0,
        "10.20.41.54:GPU:3": 1,
        "10.20.41.55:GPU:0": 2,
    }
    assert spec.devices.server("10.20.41.54:CPU:0") == 0
    assert spec.devices.server("10.20.41.54:GPU:3") == 1
    assert spec.devices.server("10.20.41.56:CPU:1") == 3
    assert spec.devices.destination == (
        "10.20.41.54:CPU:0",
        "10.20.41.54:GPU:3",
        "10.20.41.55:CPU:0",
        "10.20.41.56:CPU:0",
    )


def test_a_missing_bandwidth_names_the_node() -> None:
    text = TWO_NODES.replace("    network_bandwidth: 10\n", "")
    with pytest.raises(InvalidInput, match=r"10\.20\.41\.55.*rate of its port") as refused:
        read_resource_spec(text, "spec", T4)
    assert "network_bandwidth" in refused.value.remedy


def test_stated_ports_and_devices_replace_those_of_the_specification() -> None:
    hosts = hosts_of_spec(TWO_NODES.replace("    network_bandwidth: 10\n", ""), "spec")
    stated = HostHardware(100.0, "t4", 8, 48.0, nics=2, transport="tcp")
    cluster = cluster_of_hosts(hosts, stated, "spec")
    assert [node.bandwidth_gbps for node in cluster.nodes] == [191.2] * 3
    assert [(node.ranks, node.nics) for node in cluster.nodes] == [(8, 2), (8, 2), (0, 2)]
    assert notes_on_hosts(hosts, stated) == (
        "--per-host 8 is used, not the list's 1, 2",
        "--port-gbps 100.0 is used, not the list's 25.0, 40.0",
    )


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("gpus: [2, 3]", "gpus: [2, 2]", "gpus must be a list of different numbers"),
        ("gpus: [2, 3]", "gpus: [2, -1]", "gpus must be a list of different numbers"),
        ("gpus: [2, 3]", "gpu: [2, 3]", "unknown field 'gpu'"),
        ("bandwidth: 25", "bandwidth: fast", "must be a positive number, got 'fast'"),
        ("bandwidth: 25", "bandwidth: 0", "must be a positive number, got 0"),
        ("chief: true", "chief: 1", "chief must be true or false"),
    ],
)
def test_errors_name_the_node(old: str, new: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=rf"10\.20\.41\.54.*{why}"):
        read_resource_spec(TWO_NODES.replace(old, new), "spec", T4)


def test_hardware_that_a_specification_omits_must_be_stated() -> None:
    for hardware, why in (
        (Hardware(), "type of its GPUs is not stated"),
        (Hardware("cpu"), "is 'cpu', which is none"),
        (Hardware("t4"), "bandwidth between them is not stated"),
    ):
        with pytest.raises(InvalidInput, match=why):
            read_resource_spec(TWO_NODES, "spec", hardware)


@pytest.mark.parametrize("text", ["", "nodes: []", "[1]", "nodes: {a: 1}", "nodes: [3]", "a: &b 1"])
def test_other_yaml_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        read_resource_spec(text, "spec", T4)
