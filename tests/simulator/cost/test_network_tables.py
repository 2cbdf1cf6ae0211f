"""The tables of a network beside the sums they stand for, and how large they may become."""

import numpy as np
import pytest
from numpy.typing import NDArray

from autosync.cluster import Cluster, Device, Node
from autosync.codes import Op
from autosync.errors import NotSupported
from autosync.plan.plan_table import FIRST_SERVER, NODE_TEAMS, team_table
from autosync.simulator.backends import backend_of
from autosync.simulator.cost.link_resources import load_of, passing, resources_of
from autosync.simulator.cost.network import network_of
from tests.domains import chain_graph, domain_of
from tests.simulator.random_clusters import random_cluster


def held(share: NDArray[np.float64], flows: NDArray[np.float64]) -> set[tuple[float, float]]:
    """What a message asks of resources and how often it flows there, but for idle resources."""
    pairs = zip(share.round(9).tolist(), flows.tolist(), strict=True)
    return {(share, flow) for share, flow in pairs if share > 0}


@pytest.mark.parametrize("seed", range(12))
def test_a_message_loads_links_as_its_teams_do_one_by_one(seed: int) -> None:
    cluster = random_cluster(np.random.default_rng(seed))
    teams = team_table(domain_of(chain_graph(), cluster), ())
    costs, where = network_of(cluster, teams), resources_of(cluster)
    for operation, team, place in np.argwhere(costs.kind >= 0).tolist():
        kind, nothing = costs.kind[operation, team, place], np.zeros(len(where.rate))
        load, flows = nothing, nothing
        for ranks in teams[team]:
            root = place - 1
            if team == NODE_TEAMS and root not in ranks:
                root = -1
            edges = backend_of(cluster).edges_of(Op(operation), ranks, root)
            load = load + load_of(edges, where)
            flows = flows + passing(edges, np.ones(len(edges.source)), where)
        assert np.allclose(costs.load[kind], load, rtol=1e-12, atol=0.0)
        alone = costs.seconds_per_byte[kind] or 1.0
        assert held(load / alone, flows) == held(costs.utilization[kind], costs.flows[kind])


@pytest.mark.parametrize("seed", range(12))
def test_columns_are_kept_once_and_row_by_row(seed: int) -> None:
    cluster = random_cluster(np.random.default_rng(seed))
    costs = network_of(cluster, team_table(domain_of(chain_graph(), cluster), ()))
    columns = np.vstack([costs.utilization, costs.flows]).T
    assert len(np.unique(columns, axis=0)) == len(columns)
    # the kernel is compiled for rows of contiguous values: another order would compile it again
    assert costs.utilization.flags.c_contiguous
    assert costs.flows.flags.c_contiguous


def test_a_cluster_with_more_kinds_of_messages_than_codes_is_refused() -> None:
    cluster = Cluster("wide", (Node("10.0.0.1", (Device("v100", 5000),), 100.0, 600.0),))
    everyone = (tuple(range(5000)),)
    with pytest.raises(NotSupported, match="5000 servers"):
        network_of(cluster, (everyone,) * (FIRST_SERVER + 5000))
