from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosync.bundled_data import data_file
from autosync.cluster import Cluster, Device, Link, MessageCost, Node
from autosync.cluster.cluster_checks import COST_NUMBERS
from autosync.cluster.cluster_file import (
    MAX_BYTES,
    bundled_clusters,
    load_cluster,
    parse_cluster,
    save_cluster,
)
from autosync.cluster.devices import DEVICE_TYPES
from autosync.documents import from_data, to_data, to_json
from autosync.errors import InvalidInput, NotFound
from tests.domains import grid_cluster

TWO = """
name: two
nodes:
  - {address: 10.0.0.1, devices: [{type: t4, count: 2}], bandwidth_gbps: 9.56, %s}
  - {address: 10.0.0.2, devices: [{type: t4}], bandwidth_gbps: 9.56}
"""
GOOD = TWO % "intra_bandwidth_gbps: 48"
REDUCE = "{kind: reduce, startup_seconds: 0.001}"


class TestCluster:
    def test_ranks_count_devices_node_by_node_then_servers(self) -> None:
        cluster = load_cluster("rtx-2080-ti-2x4-10gbe-servers")
        assert cluster.world_size == 8
        assert cluster.servers == 10
        assert cluster.node_of_server().tolist() == [0] * 4 + [1] * 4 + [2, 3]
        assert len(cluster.device_of_rank()) == 8

    def test_the_slower_nic_counts_between_nodes(self) -> None:
        rates = load_cluster("example-mixed").bandwidth_bytes_per_second() * 8 / 1e9
        assert rates[0, 1] == pytest.approx(23.9)
        assert rates[0, 2] == rates[2, 0] == pytest.approx(9.56)
        assert np.isinf(rates[0, 0])

    def test_links_are_exceptions_both_ways(self) -> None:
        nodes = grid_cluster(3).nodes
        link = Link((nodes[0].address, nodes[2].address), 0.1, latency_us=900)
        cluster = Cluster("linked", nodes, links=(link,))
        rates = cluster.bandwidth_bytes_per_second() * 8 / 1e9
        assert rates[0, 2] == rates[2, 0] == pytest.approx(0.1)
        assert rates[0, 1] == pytest.approx(0.956)
        assert cluster.latency_seconds()[2, 0] == pytest.approx(9e-4)
        assert cluster.latency_seconds()[0, 1] == pytest.approx(5e-5)

    def test_fitted_costs_replace_assumed_ones(self) -> None:
        assumed = grid_cluster()
        assert assumed.cost("all_reduce").residual is None
        fitted = MessageCost("all_reduce", 1e-3, residual=0.04)
        cluster = Cluster("fitted", assumed.nodes, costs=(fitted,))
        assert cluster.cost("all_reduce") == fitted
        assert cluster.cost("broadcast") == assumed.cost("broadcast")
        assert cluster.id != assumed.id

    @pytest.mark.parametrize("slowdown", [0.0, 0.05])
    def test_compute_beside_messages_is_said_only_where_it_is_known(self, slowdown: float) -> None:
        plain = replace(grid_cluster(), overlap_slowdown=None)
        assert not {"overlap_slowdown", "link_seconds_per_send"} & to_data(plain).keys()
        assert from_data(Cluster, to_data(plain)) == plain
        for field, value in (("overlap_slowdown", slowdown), ("link_seconds_per_send", 1e-5)):
            changed: dict[str, Any] = {field: value}
            known = replace(plain, **changed)
            assert to_data(known) == {**to_data(plain), field: value}
            assert from_data(Cluster, to_data(known)) == known
            assert known.id != plain.id

    def test_where_it_is_not_known_by_how_much_compute_slows_gloo_slows_it_by_a_tenth(self) -> None:
        gloo = replace(grid_cluster(), overlap_slowdown=None)
        nccl = replace(gloo, backend="nccl")
        assert (gloo.compute_slowdown, nccl.compute_slowdown) == (0.1, 0.0)
        for known in (0.0, 0.05):
            assert replace(gloo, overlap_slowdown=known).compute_slowdown == known
            assert replace(nccl, overlap_slowdown=known).compute_slowdown == known

    @pytest.mark.parametrize("slowdown", [-0.1, float("inf"), float("nan")])
    def test_messages_neither_hasten_nor_stop_compute(self, slowdown: float) -> None:
        with pytest.raises(InvalidInput, match="overlap_slowdown must be 0 or more") as caught:
            replace(grid_cluster(), overlap_slowdown=slowdown)
        assert caught.value.thing == "overlap_slowdown"
        assert "0.05 for 5 %" in caught.value.remedy
        with pytest.raises(InvalidInput, match="link_seconds_per_send must be 0 or more"):
            replace(grid_cluster(), link_seconds_per_send=-1e-5)

    @pytest.mark.parametrize(
        ("node", "words"),
        [
            (Node("b", (), 1.0), "devices is empty"),
            (Node("b", (Device("t5"),), 1.0), "device type is none of"),
            (Node("b", (Device("t4", 0),), 1.0), "device count"),
            (Node("b", (Device("t4", slowdown=0),), 1.0), "slowdown"),
            (Node("b", (Device("t4"),), 0.0), "bandwidth_gbps must be positive"),
            (Node("b", (Device("t4"),), float("nan")), "bandwidth_gbps must be positive"),
            (Node("b", (Device("t4", 2),), 1.0), "intra_bandwidth_gbps must be stated"),
            (Node("b", (Device("t4"),), 1.0, latency_us=-1), "latency_us"),
            (Node("b", (Device("t4", memory_gb=0),), 1.0), "device memory_gb"),
            (Node("b", (Device("t4"),), 1.0, nics=0), "nics"),
            (Node("b", (Device("t4"),), 1.0, usd_per_hour=-1), "usd_per_hour"),
            (Node("a", (Device("t4"),), 1.0), "used by two nodes"),
        ],
    )
    def test_a_node_that_cannot_be_is_named(self, node: Node, words: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            Cluster("bad", (Node("a", (Device("t4"),), 1.0), node))
        assert words in caught.value.message
        assert f"node '{node.address}'" in caught.value.message
        assert caught.value.remedy

    @pytest.mark.parametrize(("price", "day"), [(1.5, ""), (1.5, "June"), (0.0, "2024-06-01")])
    def test_a_price_has_its_day(self, price: float, day: str) -> None:
        node = Node("a", (Device("t4", 2),), 1.0, 48.0, usd_per_hour=price)
        with pytest.raises(InvalidInput, match="priced_on"):
            Cluster("priced", (node,), priced_on=day)

    def test_what_later_fields_say_is_left_out_where_they_say_nothing(self) -> None:
        plain = to_data(grid_cluster())
        assert not {"priced_on", "nics", "usd_per_hour"} & {*plain, *plain["nodes"][0]}
        text = "priced_on: 2024-06-01\n" + GOOD.replace("9.56,", "9.56, usd_per_hour: 2.5,")
        priced = parse_cluster(text, "mine.yaml")
        assert priced.priced_on == "2024-06-01"
        assert priced.usd_per_hour is None  # the second node has none

    def test_clusters_with_nothing_to_synchronize(self) -> None:
        with pytest.raises(InvalidInput, match="no nodes"):
            Cluster("none", ())
        with pytest.raises(InvalidInput, match="1 device"):
            Cluster("one", (Node("a", (Device("t4"),), 1.0),))
        server = Node("b", (), 1.0, server_only=True)
        with pytest.raises(InvalidInput, match="1 device"):
            Cluster("one", (Node("a", (Device("t4"),), 1.0), server))

    def test_more_ranks_than_16_bits_number_are_refused(self) -> None:
        with pytest.raises(InvalidInput, match="32768 ranks"):
            Cluster("wide", (Node("a", (Device("t4", 32_768),), 1.0, 1.0),))

    def test_links_must_join_known_nodes_at_a_positive_rate(self) -> None:
        nodes = grid_cluster(2).nodes
        with pytest.raises(InvalidInput, match="'c', which is no node"):
            Cluster("linked", nodes, links=(Link((nodes[0].address, "c"), 1.0),))
        both = (nodes[0].address, nodes[1].address)
        with pytest.raises(InvalidInput, match="must be positive"):
            Cluster("linked", nodes, links=(Link(both, 0.0),))

    @pytest.mark.parametrize("value", [-1e-6, float("inf"), float("nan")])
    @pytest.mark.parametrize("field", COST_NUMBERS)
    def test_no_message_costs_less_than_nothing(self, field: str, value: float) -> None:
        stated: dict[str, Any] = {"startup_seconds": 1e-4, field: value}
        cost = MessageCost("all_reduce", **stated)
        with pytest.raises(InvalidInput, match=f"the {field} of all_reduce must be 0 or more"):
            replace(grid_cluster(), costs=(cost,))

    @pytest.mark.parametrize("latency_us", [-50.0, float("inf"), float("nan")])
    def test_a_link_delays_by_a_finite_time(self, latency_us: float) -> None:
        nodes = grid_cluster(2).nodes
        link = Link((nodes[0].address, nodes[1].address), 1.0, latency_us)
        with pytest.raises(InvalidInput, match=r"latency_us .*must be 0 or more") as caught:
            Cluster("linked", nodes, links=(link,))
        assert caught.value.remedy

    def test_a_link_joins_two_nodes_and_no_other_contradicts_it(self) -> None:
        nodes = grid_cluster(2).nodes
        first, second = (node.address for node in nodes)
        with pytest.raises(InvalidInput, match="are one node"):
            Cluster("linked", nodes, links=(Link((first, first), 1.0),))
        there, back = Link((first, second), 1.0), Link((second, first), 1.0)
        assert Cluster("linked", nodes, links=(there, back)).links == (there, back)
        both = (there, replace(back, bandwidth_gbps=2.0))
        with pytest.raises(InvalidInput, match="are stated twice"):
            Cluster("linked", nodes, links=both)


class TestPresets:
    @pytest.mark.parametrize("name", bundled_clusters())
    def test_every_preset_loads_saves_and_says_what_its_rates_are(
        self, name: str, tmp_path: Path
    ) -> None:
        cluster = load_cluster(name)
        save_cluster(cluster, tmp_path / "saved.yaml")
        assert load_cluster(tmp_path / "saved.yaml") == cluster
        assert [path.name for path in tmp_path.iterdir()] == ["saved.yaml"]
        assert cluster.name == name
        assert cluster.description
        assert cluster.world_size >= 2
        text = data_file("clusters", f"{name}.yaml").read_text()
        comment = " ".join(line for line in text.splitlines() if line.startswith("#"))
        assert "payload" in comment

    def test_the_papers_testbeds_are_there(self) -> None:
        """AutoSync's supplement, table 2: GPUs of A1 to B12; HeteroG, PACE, Poseidon, DeAR."""
        sizes = {name: load_cluster(name).world_size for name in bundled_clusters()}
        ranks = (16, 11, 8, 12, 16, 4, 8, 12, 16, 32, 5, 8, 16, 5)
        names = ("A1", "A2", *(f"B{number}" for number in range(1, 13)))
        published = dict(zip(names, ranks, strict=True))
        loaded = [load_cluster(name) for name in bundled_clusters()]
        found = {
            c.description.partition("AutoSync's ")[2].rstrip(")"): c.world_size
            for c in loaded
            if "AutoSync's" in c.description
        }
        assert found == published
        promised = {"heterog-12-gpus": 12, "pace-8x2": 16, "titan-x-32x1-40gbe": 32}
        promised |= {"rtx-2080-ti-16x4-10gbe": 64, "example-8x1": 8, "example-4x2": 8}
        promised |= dict.fromkeys(("example-4x1", "example-2x2", "example-mixed"), 4)
        promised |= dict.fromkeys(("rtx-2080-ti-4x4-10gbe", "rtx-2080-ti-4x4-ib100"), 16)
        assert sizes.items() >= {**promised, "aws-g4dn-12xlarge-x4": 16}.items()

    def test_an_unknown_name_lists_the_presets(self) -> None:
        for name in ("example-4x3", "../clusters/example-4x1", ""):
            with pytest.raises(NotFound, match="example-4x1"):
                load_cluster(name)


class TestFile:
    def test_json_is_yaml(self) -> None:
        cluster = parse_cluster(GOOD, "text")
        assert parse_cluster(to_json(cluster), "text") == cluster

    def test_small_seconds_are_read_as_json_and_a_refusal_write_them(self) -> None:
        """1e-05, which YAML 1.1 alone takes for text."""
        with pytest.raises(InvalidInput) as refused:
            parse_cluster(GOOD + "link_seconds_per_send: -1", "mine.yaml")
        assert "1e-05" in refused.value.remedy
        small = parse_cluster(GOOD + "link_seconds_per_send: 1e-05", "mine.yaml")
        assert small.link_seconds_per_send == 1e-5
        assert parse_cluster(to_json(small), "text") == small
        fast = parse_cluster(GOOD.replace("9.56}", "1e2}"), "mine.yaml")
        assert fast.nodes[1].bandwidth_gbps == 100.0
        with pytest.raises(InvalidInput, match="bandwidth_gbps must be a number below"):
            parse_cluster(GOOD.replace("9.56}", "1e999}"), "mine.yaml")

    def test_a_file_is_read_by_its_path(self, tmp_path: Path) -> None:
        (tmp_path / "mine.yml").write_text(GOOD)
        cluster = load_cluster(tmp_path / "mine.yml")
        assert cluster.world_size == 3
        assert cluster == parse_cluster(GOOD, "text")

    def test_a_file_says_how_messages_slow_compute(self, tmp_path: Path) -> None:
        cluster = parse_cluster(GOOD + "overlap_slowdown: 0.07", "mine.yaml")
        assert cluster.overlap_slowdown == 0.07
        save_cluster(cluster, tmp_path / "saved.yaml")
        assert load_cluster(tmp_path / "saved.yaml") == cluster
        assert parse_cluster(GOOD + "overlap_slowdown: 0", "mine.yaml").overlap_slowdown == 0.0
        assert parse_cluster(GOOD, "mine.yaml").overlap_slowdown is None

    def test_what_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match=r"absent\.yaml.*No such file"):
            load_cluster(tmp_path / "absent.yaml")
        (tmp_path / "folder.yaml").mkdir()
        with pytest.raises(InvalidInput, match=r"folder\.yaml.*directory"):
            load_cluster(tmp_path / "folder.yaml")
        (tmp_path / "binary.yaml").write_bytes(b"name: \xff\xfe")
        with pytest.raises(InvalidInput, match="not UTF-8"):
            load_cluster(tmp_path / "binary.yaml")
        (tmp_path / "large.yaml").write_bytes(b"#" * (MAX_BYTES + 5))
        with pytest.raises(InvalidInput, match="larger than 1000 kB"):
            load_cluster(tmp_path / "large.yaml")
        with pytest.raises(InvalidInput, match="larger than 0 kB"):
            parse_cluster(GOOD, "text", max_bytes=100)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            (GOOD.replace("bandwidth_gbps: 9.56}", "latency_us: 5}"), "bandwidth_gbps is missing"),
            (GOOD.replace("9.56}", "fast}"), "bandwidth_gbps must be a number"),
            (GOOD.replace("9.56}", "true}"), "bandwidth_gbps must be a number"),
            (GOOD.replace("9.56}", ".inf}"), "bandwidth_gbps must be a number below"),
            (GOOD.replace("9.56}", ".nan}"), "bandwidth_gbps must be a number below"),
            (GOOD.replace("9.56}", "-1}"), "bandwidth_gbps must be positive"),
            (GOOD.replace("[{type: t4}]", "[{type: t5}]"), "none of cpu"),
            (GOOD.replace("[{type: t4}]", "[{count: 2}]"), "must state its type"),
            (GOOD.replace("[{type: t4}]", "[t4]"), "must state its type"),
            (GOOD.replace("[{type: t4}]", "t4"), "devices is missing"),
            (GOOD.replace("{type: t4}", "{type: t4, count: 2.5}"), "device count"),
            (GOOD.replace("{type: t4}", "{type: t4, count: 1000000}"), "device count"),
            (GOOD.replace("{type: t4}", "{type: t4, memory_gb: big}"), "memory_gb"),
            (GOOD.replace("{type: t4}", "{type: t4, cuont: 2}"), "unknown field 'cuont'"),
            (GOOD.replace("9.56}", "9.56, bandwith: 3}"), "unknown field 'bandwith'"),
        ],
    )
    def test_the_node_at_fault_is_named(self, text: str, words: str) -> None:
        assert text != GOOD
        with pytest.raises(InvalidInput) as caught:
            parse_cluster(text, "mine.yaml")
        assert "node '10.0.0.2'" in caught.value.message
        assert words in caught.value.message
        assert caught.value.remedy

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "holds a NoneType"),
            ("- 1", "holds a list"),
            ("name: x", "names no nodes"),
            ("name: x\nnodes: 3", "names no nodes"),
            ("name: x\nnodes: [3]", "node number 1 is a int"),
            ("name: x\nnodes: [{}]", "node number 1 has no address"),
            ("nodes: [{}]", "has no name"),
            (TWO % "latency_us: 5", "intra_bandwidth_gbps must be stated"),
            (GOOD.replace("10.0.0.2", "10.0.0.1"), "used by two nodes"),
            (GOOD + "bakcend: nccl", "bakcend"),
            (GOOD + "backend: mpi", "backend"),
            (GOOD + "overlap_slowdown: -0.1", "overlap_slowdown must be 0 or more"),
            (GOOD + "costs: [{kind: reduce, startup_seconds: -1}]", "startup_seconds of reduce"),
            (GOOD + f"costs: [{REDUCE}, {REDUCE}]", "two costs are of 'reduce'"),
            (GOOD + "overlap_slowdown: .inf", "overlap_slowdown must be a number"),
            (GOOD + "overlap_slowdown: 5%", "overlap_slowdown must be a number"),
            (GOOD + "name: again", "line 6: is no valid YAML: 'name' is given twice"),
            (GOOD + "x: [", "line 7: is no valid YAML"),
            (GOOD + "x: !!python/object:os.system {}", "is no valid YAML"),
            (GOOD + "x: 2024-99-99", "is no valid YAML"),
            (GOOD + "x: \x07", "is no valid YAML"),
            ("[" * 50_000, "nested more than"),
            (
                "name: x\nnodes: [{address: a, devices: [{type: t4}], bandwidth_gbps: 1}]",
                "nothing to synchronize",
            ),
            ("name: " + "9" * 10_000, "is no valid YAML: a number has 10000 characters"),
            ("name: " + ":".join(["59"] * 300_000), "a number has 899999 characters"),
            (GOOD.replace("9.56}", f"0x{'f' * 5000}}}"), "a number has 5002 characters"),
            (GOOD.replace("count: 2", "count: 1_000_000_000_000_000"), "device count must be"),
            *((GOOD + f"x: !!{tag}", "a tag is on") for tag in ("bool a", "timestamp a", "int ''")),
        ],
    )
    def test_what_is_no_cluster_is_refused(self, text: str, words: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            parse_cluster(text, "mine.yaml")
        assert words in caught.value.message
        assert len(str(caught.value)) < 1000

    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            ("10.0.0.2", "003", "node number 2 has the address 3, which is no text"),
            ("10.0.0.2", "no", "node number 2 has the address False, which is no text"),
            ("name: two", "name: 2024", "has the name 2024, which is no text"),
        ],
    )
    def test_text_that_yaml_reads_as_something_else_needs_quotes(
        self, old: str, new: str, words: str
    ) -> None:
        with pytest.raises(InvalidInput) as caught:
            parse_cluster(GOOD.replace(old, new), "mine.yaml")
        assert words in caught.value.message
        assert "in quotes" in caught.value.remedy

    def test_a_bomb_of_aliases_is_refused_at_once(self) -> None:
        levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
        levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
        with pytest.raises(InvalidInput, match="aliases"):
            parse_cluster("\n".join(levels), "mine.yaml")

    def test_device_types_are_usable_as_they_are_listed(self) -> None:
        for device in DEVICE_TYPES:
            assert parse_cluster(GOOD.replace("t4", device), "x").device_of_rank()[0].type == device


def test_measurements_do_not_carry_over_to_another_backend() -> None:
    measured = replace(
        grid_cluster(2),
        costs=(MessageCost("all_reduce", 1e-4, 0.0, 0.0),),
        overlap_slowdown=0.2,
        link_seconds_per_send=1e-5,
        connection_gbps=5.0,
    )
    assert measured.on_backend("gloo") is measured
    other = measured.on_backend("nccl")
    assert (other.backend, other.costs, other.overlap_slowdown) == ("nccl", (), None)
    assert other.link_seconds_per_send == 0.0
    assert other.connection_gbps == 5.0  # of TCP, whoever uses it
