"""Teams and rates of clusters of any size, without a table of all pairs of ranks."""

import tracemalloc
from dataclasses import replace

import pytest

from autosync.cluster import Cluster, Device, Node
from autosync.cluster.cluster_file import load_cluster
from autosync.plan.compiler_arrays import crossed_bytes_per_second
from autosync.plan.plan_table import ALL_RANKS, FIRST_SERVER, LEADERS, NODE_TEAMS, cluster_teams
from autosync.simulator.cost.network import network_of

SMALL = ("example-2x2", "example-mixed", "example-uneven", "rtx-2080-ti-2x4-10gbe-servers")


def gpus(count: int) -> Cluster:
    nodes = tuple(
        Node(f"10.0.{i // 250}.{i % 250 + 1}", (Device("h100", 8),), 3000.0, 2800.0, 5.0)
        for i in range(count // 8)
    )
    return Cluster(f"{count} GPUs", nodes, "nccl", transport="infiniband")


@pytest.mark.parametrize("name", SMALL)
def test_teams_of_servers_put_each_in_place_of_its_leader(name: str) -> None:
    cluster = load_cluster(name)
    node_of = cluster.node_of_server().tolist()
    teams = cluster_teams(cluster)
    assert len(teams) == len(tuple(teams)) == FIRST_SERVER + cluster.servers
    assert teams[ALL_RANKS] == (tuple(range(cluster.world_size)),)
    ((*leaders,),) = teams[LEADERS]
    assert [node_of[rank] for rank in leaders] == sorted(set(node_of[: cluster.world_size]))
    of_nodes = [
        [rank for rank in range(cluster.world_size) if node_of[rank] == node]
        for node in sorted(set(node_of[: cluster.world_size]))
    ]
    assert sorted(map(list, teams[NODE_TEAMS])) == [ranks for ranks in of_nodes if len(ranks) > 1]
    for server in range(cluster.servers):
        (team,) = teams[FIRST_SERVER + server]
        others = {rank for rank in leaders if node_of[rank] != node_of[server]}
        assert sorted(team) == sorted({*others, server})
        assert [node_of[each] for each in team[: len(leaders)]] == [node_of[r] for r in leaders]


def test_added_teams_follow_and_tables_of_equal_teams_are_equal() -> None:
    cluster = load_cluster("example-2x2")
    teams = cluster_teams(cluster)
    more = teams.with_added([((3, 2, 1, 0),)])
    assert more[len(teams)] == more[-1] == ((3, 2, 1, 0),)
    assert more[: len(teams)] == tuple(teams)
    assert more != teams == cluster_teams(replace(cluster, name="other"))
    assert len({more, teams, cluster_teams(cluster)}) == 2
    with pytest.raises(IndexError):
        more[len(more)]


@pytest.mark.parametrize("name", SMALL)
def test_the_slowest_link_is_found_without_all_pairs(name: str) -> None:
    cluster = load_cluster(name)
    rates, node_of = cluster.bandwidth_bytes_per_second(), cluster.node_of_server()
    ring, *served = crossed_bytes_per_second(cluster)
    ranks = range(cluster.world_size)
    assert ring == min(rates[node_of[rank], node_of[(rank or len(ranks)) - 1]] for rank in ranks)
    for server, found in enumerate(served):
        between = [rates[node_of[rank], node_of[server]] for rank in ranks if rank != server]
        assert found == min(between)


def test_a_cluster_of_thousands_of_gpus_takes_little_memory() -> None:
    """A table of servers times nodes, or of pairs of ranks, takes more than 100 MB."""
    cluster = gpus(4096)
    tracemalloc.start()
    try:
        teams = cluster_teams(cluster)
        network = network_of(cluster, teams)
        crossed = crossed_bytes_per_second(cluster)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 40e6
    assert len(crossed) == 4097
    assert len(network.resources) == 4  # of alike nodes one stands for all
