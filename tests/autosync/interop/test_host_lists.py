"""Hostfiles, Slurm's node lists and Ray's nodes, and the clusters they become."""

from dataclasses import replace

import pytest

from autosync.cluster.link_rates import StatedTransport
from autosync.errors import InvalidInput
from autosync.interop.gpu_topology import GpuTopology
from autosync.interop.host_clusters import (
    HostHardware,
    cluster_of_hosts,
    hosts_of_ray,
    notes_on_hosts,
)
from autosync.interop.host_list import Host, expand_counts, expand_nodelist, read_hostfile

A100 = HostHardware(200.0, "a100", intra_bandwidth_gbps=1872.0, nics=8)


def test_hostfiles_of_mpirun_horovod_and_deepspeed() -> None:
    text = "# mine\n\nnode-1 slots=4 max_slots=8\nnode-2:2   # two\n10.0.0.3\n10.0.0.3\nfe80::1\n"
    hosts, notes = read_hostfile(text, "hosts")
    assert hosts == (Host("node-1", 4), Host("node-2", 2), Host("10.0.0.3", 2), Host("fe80::1"))
    assert notes == ("hosts: max_slots= is left out (of use to the launcher alone)",)


def test_how_to_log_in_is_left_out_with_a_note() -> None:
    text = (
        "user@10.0.0.4\nroot@node-1:8\nnode-2 slots = 4 port=2222\n[fe80::1]:4\n[fe80::2]\n"
        "node-3:2 ifhn=node-3-ib\nme@[fe80::3%eth0]:1 user=me\n"
    )
    hosts, notes = read_hostfile(text, "hosts")
    assert hosts == (
        *(Host("10.0.0.4"), Host("node-1", 8), Host("node-2", 4), Host("fe80::1", 4)),
        *(Host("fe80::2"), Host("node-3", 2), Host("fe80::3%eth0", 1)),
    )
    for words in ("user@host", "port=", "ifhn=", "user="):
        assert any(f"{words} is left out" in note for note in notes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no host"),
        ("# nothing\n", "names no host"),
        ("a slots=2\na slots=2\n", "line 2: host 'a' has its slots stated twice"),
        ("a slots=0\n", "line 1: slots must be"),
        ("a slots=99999999999\n", "slots must be"),
        ("a:two\n", "slots must be"),
        ("a slots=²\n", "slots must be"),
        ("a cpus=2\n", "cannot read 'cpus=2'"),
        ("a port=\n", "cannot read 'port='"),
        ("[a]:2\n", "no host's name"),
        ("[fe80::1]:\n", "slots must be"),
        ("-x@a\n", "no user's name"),
        ("me@-a\n", "no host's name"),
        ("-oProxyCommand=rm slots=1\n", "no host's name"),
        ("a;rm\n", "no host's name"),
        ("\n".join(f"h{i}" for i in range(5000)), "more than 4096 hosts"),
        ("x" * 1_000_001, "larger than 1000 kB"),
    ],
)
def test_malformed_hostfiles_name_the_line(text: str, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_hostfile(text, "hosts")
    assert words in refused.value.message
    assert refused.value.remedy
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("nodelist", "hosts"),
    [
        ("login", ["login"]),
        ("a,b", ["a", "b"]),
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[08-10,007],x", ["gpu08", "gpu09", "gpu10", "gpu007", "x"]),
        ("r[0-1]n[1-2]-ib", ["r0n1-ib", "r0n2-ib", "r1n1-ib", "r1n2-ib"]),
        ("n[9]", ["n9"]),
    ],
)
def test_node_lists_are_expanded_as_slurm_does(nodelist: str, hosts: list[str]) -> None:
    assert list(expand_nodelist(nodelist)) == hosts


@pytest.mark.parametrize(
    "nodelist",
    ["", ",", "a,,b", "a[", "a]", "a[1", "a[[1]]", "a[3-1]", "a[x]", "a[1-]", "a[]", "a,a",
     "a[1-999999999]", "a[0-99]b[0-99]", "a[0-9999999999999]", "-w[1-2]", "a b", "a[1-2"],
)  # fmt: skip
def test_hostile_node_lists_are_refused(nodelist: str) -> None:
    with pytest.raises(InvalidInput, match="SLURM_JOB_NODELIST") as refused:
        expand_nodelist(nodelist)
    assert len(str(refused.value)) < 500


def test_tasks_of_each_host() -> None:
    assert expand_counts("4(x2),3") == (4, 4, 3)
    for bad in ("", "4(x99999)", "4(2)", "x", "4,,4", "(x2)", "0"):
        with pytest.raises(InvalidInput, match="SLURM_TASKS_PER_NODE"):
            expand_counts(bad)


def test_hardware_that_a_list_omits_must_be_stated() -> None:
    cluster = cluster_of_hosts([Host("a", 8), Host("b", 8)], A100, "hosts")
    assert cluster.world_size == 16
    assert cluster.backend == "nccl"
    assert cluster.nodes[0].bandwidth_gbps == pytest.approx(8 * 200 * 0.956)
    assert cluster.nodes[0].nics == 8
    for hardware, words in (
        (HostHardware(10.0, slots=1), "type of its devices is not stated"),
        (HostHardware(10.0, "gtx-9", slots=1), "'gtx-9', which is none"),
        (HostHardware(10.0, "t4"), "how many devices it has is not stated"),
        (HostHardware(10.0, "t4", slots=2), "bandwidth between them is not stated"),
        (HostHardware(0.0, "t4", slots=1), "port must be positive"),
    ):
        with pytest.raises(InvalidInput, match=words) as refused:
            cluster_of_hosts([Host("a"), Host("b")], hardware, "hosts")
        assert refused.value.remedy


def test_stated_devices_are_used_and_the_list_or_topology_where_nothing_is_stated() -> None:
    seen = GpuTopology(((0, 12), (12, 0)), 2)
    stated = HostHardware(100.0, "a100", topology=seen, transport="roce")

    def made(hosts: list[Host], hardware: HostHardware) -> tuple[int, tuple[str, ...]]:
        cluster = cluster_of_hosts(hosts, hardware, "hosts")
        return cluster.world_size, notes_on_hosts(hosts, hardware)

    assert made([Host("a"), Host("b")], stated) == (4, ())
    assert made([Host("a", 1), Host("b", 1)], stated) == (
        2,
        ("the topology shows 2 GPUs a host: 1 are used",),
    )
    eight = replace(stated, slots=8, nics=4, intra_bandwidth_gbps=900.0, latency_us=7.0)
    ranks, notes = made([Host("a", 1, "t4"), Host("b", 1)], eight)
    assert ranks == 16
    assert notes == (
        "--per-host 8 is used, not the list's 1",
        "--device a100 is used, not the list's t4",
        "the topology shows 2 GPUs a host: 8 are used",
        "--nics 4 is used, not the 2 of the topology",
    )


def test_a_topology_estimates_the_rate_of_listed_device_types() -> None:
    seen = GpuTopology(((0, 12), (12, 0)), 2)
    hosts = [Host("a", 2, "a100"), Host("b", 2, "a100-80gb")]
    cluster = cluster_of_hosts(hosts, HostHardware(100.0, topology=seen), "Ray")
    assert [node.intra_bandwidth_gbps for node in cluster.nodes] == [1872.0, 1872.0]


@pytest.mark.parametrize(
    ("transport", "latency_us"), [("tcp", 50.0), ("roce", 5.0), ("infiniband", 5.0), ("efa", 15.0)]
)
def test_the_transport_gives_the_latency(transport: StatedTransport, latency_us: float) -> None:
    hosts = [Host("a", 1), Host("b", 1)]
    stated = HostHardware(100.0, "a100", transport=transport)
    assert cluster_of_hosts(hosts, stated, "hosts").nodes[0].latency_us == latency_us
    assert notes_on_hosts(hosts, stated) == ()


def test_the_interconnect_is_written_as_the_topology_shows_it() -> None:
    row = (18,) * 8
    links = tuple((*row[:gpu], 0, *row[gpu + 1 :]) for gpu in range(8))
    seen = GpuTopology(links, nics=8, rails=True)
    stated = HostHardware(400.0, "h100", topology=seen, transport="infiniband")
    cluster = cluster_of_hosts([Host("a"), Host("b")], stated, "hosts")
    node = cluster.nodes[0]
    assert (node.nvswitch, node.rails, node.nics, node.nic_gbps) == (True, True, 8, 400.0)
    assert (node.gpu_link, node.bandwidth_gbps) == ("", 3200 * 0.97)
    assert cluster.transport == "infiniband"
    by_pcie = replace(stated, topology=GpuTopology(((0,) * 8,) * 8, nics=2), nics=1)
    node = cluster_of_hosts([Host("a"), Host("b")], by_pcie, "hosts").nodes[0]
    assert (node.nvswitch, node.rails, node.gpu_link) == (False, False, "pcie")


def test_an_assumed_transport_is_told() -> None:
    hosts = [Host("a", 1), Host("b", 1)]
    cluster = cluster_of_hosts(hosts, HostHardware(100.0, "a100"), "hosts")
    assert cluster.nodes[0].latency_us == 50.0
    assert "TCP is assumed" in cluster.description
    assert "probe" not in cluster.description  # which measures neither rates nor latencies
    (note,) = notes_on_hosts(hosts, HostHardware(100.0, "a100"))
    assert "--transport infiniband" in note
    known = HostHardware(100.0, "a100", latency_us=3.0)
    assert notes_on_hosts(hosts, known) == ()
    assert "assumed" not in cluster_of_hosts(hosts, known, "hosts").description


def node(address: str, alive: bool = True, **resources: float) -> dict[str, object]:
    named = {key.replace("type_", "type:").replace("_80", "-80"): v for key, v in resources.items()}
    return {"NodeManagerAddress": address, "Alive": alive, "Resources": named}


def test_rays_nodes_are_hosts_with_their_gpus() -> None:
    head = node("10.0.0.1", CPU=4)
    a100 = node("10.0.0.3", GPU=8.0, accelerator_type_A100_80G=1.0)
    t4 = node("10.0.0.2", GPU=1.0, accelerator_type_T4=1.0)
    gone = node("10.0.0.4", alive=False, GPU=8.0)
    assert hosts_of_ray([head, a100, t4, gone]) == (
        Host("10.0.0.2", 1, "t4"),
        Host("10.0.0.3", 8, "a100-80gb"),
    )
    assert hosts_of_ray([head, node("10.0.0.5")]) == (Host("10.0.0.1", None, "cpu"),)
    assert hosts_of_ray([node("a", GPU=2.0)]) == (Host("a", 2, None),)
    with pytest.raises(InvalidInput, match=r"0\.5 GPUs"):
        hosts_of_ray([node("a", GPU=0.5)])
    with pytest.raises(InvalidInput, match="0 hosts alive"):
        hosts_of_ray([gone])


def test_a_gpu_of_rays_that_is_not_known_is_stated() -> None:
    odd = hosts_of_ray([node(name, GPU=1.0, accelerator_type_A5000=1.0) for name in ("a", "b")])
    with pytest.raises(InvalidInput, match="is 'A5000', which is none"):
        cluster_of_hosts(odd, HostHardware(100.0), "Ray")
    stated = HostHardware(100.0, "a100")
    found = cluster_of_hosts(odd, stated, "Ray")
    assert {device.type for device in found.device_of_rank()} == {"a100"}
    assert "--device a100 is used, not the list's A5000" in notes_on_hosts(odd, stated)
