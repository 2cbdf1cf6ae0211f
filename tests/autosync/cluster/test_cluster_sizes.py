from dataclasses import replace

import pytest

from autosync.cluster import Link
from autosync.cluster.cluster_file import load_cluster
from autosync.cluster.cluster_sizes import cluster_of_nodes
from autosync.errors import InvalidInput, NotSupported
from tests.domains import grid_cluster


def test_more_nodes_repeat_those_there_are() -> None:
    four = load_cluster("aws-p5-48xlarge-x4")
    assert cluster_of_nodes(four, 4) is four
    many = cluster_of_nodes(four, 128)
    assert many.world_size == 1024
    assert len({node.address for node in many.nodes}) == 128
    assert {replace(node, address="") for node in many.nodes} == {
        replace(four.nodes[0], address="")
    }


def test_further_nodes_take_no_address_that_another_has() -> None:
    first, second = grid_cluster(2).nodes
    named = (replace(first, address="n"), replace(second, address="n-3"))
    found = cluster_of_nodes(replace(grid_cluster(2), nodes=named), 4)
    assert [node.address for node in found.nodes] == ["n", "n-3", "n-3-", "n-4"]


def test_fewer_nodes_are_the_first_and_dedicated_servers_stay() -> None:
    served = load_cluster("rtx-2080-ti-4x4-10gbe-servers")
    two = cluster_of_nodes(served, 2)
    assert two.world_size == 8
    assert [node.address for node in two.nodes[:2]] == [node.address for node in served.nodes[:2]]
    assert sum(node.server_only for node in two.nodes) == 4


def test_links_of_nodes_that_go_are_gone() -> None:
    nodes = grid_cluster(4).nodes
    links = (
        Link((nodes[0].address, nodes[1].address), 0.5),
        Link((nodes[0].address, nodes[3].address), 0.5),
    )
    linked = replace(grid_cluster(4), links=links)
    assert cluster_of_nodes(linked, 2).links == links[:1]
    with pytest.raises(NotSupported, match="links are stated pair by pair"):
        cluster_of_nodes(linked, 5)


def test_what_a_further_node_would_be_must_be_known() -> None:
    mixed = load_cluster("example-mixed")
    with pytest.raises(NotSupported, match="its nodes differ"):
        cluster_of_nodes(mixed, 9)
    for count in (0, 10_000):
        with pytest.raises(InvalidInput, match=f"cannot have {count} nodes"):
            cluster_of_nodes(load_cluster("aws-p5-48xlarge-x4"), count)


def test_the_day_of_prices_goes_with_the_last_priced_node() -> None:
    bought, second = grid_cluster(2, 2).nodes
    rented = replace(second, usd_per_hour=3.0)
    cluster = replace(grid_cluster(2, 2), nodes=(bought, rented), priced_on="2026-01-31")
    assert cluster_of_nodes(cluster, 1).priced_on == ""
    assert cluster_of_nodes(replace(cluster, nodes=(rented, bought)), 1).priced_on == "2026-01-31"
