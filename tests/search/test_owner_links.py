"""What owners' links are counted by."""

import numpy as np
import pytest

from autosync.cluster import Cluster
from autosync.cluster.cluster_file import load_cluster
from autosync.cluster.cluster_sizes import cluster_of_nodes
from autosync.search.designs.known_designs import least_busy_link, most_of_others
from autosync.search.domain_facts import owner_links
from autosync.strategy import ParameterServer
from tests.domains import chain_graph, domain_of, grid_cluster

P5 = load_cluster("aws-p5-48xlarge-x4")


def test_owners_of_thousands_of_gpus_are_of_as_many_kinds_as_of_few() -> None:
    few, many = (
        owner_links(domain_of(chain_graph(), cluster_of_nodes(P5, nodes))) for nodes in (4, 2048)
    )
    assert len(many.kind) == 16_384
    assert [each.shape for each in many[1:]] == [each.shape for each in few[1:]]
    assert sum(each.size for each in many[1:]) < 200


@pytest.mark.parametrize("cluster", [P5, grid_cluster(4, 2)])
def test_equal_pieces_go_to_owners_in_turn(cluster: Cluster) -> None:
    """Whether links are counted one by one or by kind."""
    world = cluster.world_size
    domain = domain_of(chain_graph(((1000, 1000),) * world), cluster)
    owners = [
        shard.server
        for choice in least_busy_link(domain).values()
        for shard in choice.shards
        if isinstance(shard, ParameterServer)
    ]
    assert sorted(owners) == list(range(world))


def test_the_most_of_all_others() -> None:
    assert most_of_others(np.array([3.0, 5.0, 4.0])).tolist() == [5.0, 4.0, 5.0]
    assert most_of_others(np.array([5.0, 5.0])).tolist() == [5.0, 5.0]
    assert most_of_others(np.array([2.0])).tolist() == [0.0]
