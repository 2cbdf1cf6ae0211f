"""What messages cost on a cluster: by its backend's edges, or by the model of its collectives."""

from functools import lru_cache

from autosync.cluster import Cluster
from autosync.codes import Op
from autosync.plan.plan_table import TeamTable
from autosync.simulator.backends import backend_of
from autosync.simulator.cost.collective_costs import collective_network, has_collective_model
from autosync.simulator.cost.edge_costs import edge_network
from autosync.simulator.cost.link_resources import load_of, resources_of
from autosync.simulator.cost.network_arrays import Network


@lru_cache(maxsize=8)
def network_of(cluster: Cluster, teams: TeamTable) -> Network:
    """The costs of every class of messages that plans over these teams can hold."""
    if has_collective_model(cluster):
        return collective_network(cluster, teams)
    return edge_network(cluster, teams)


def link_seconds_per_byte(
    cluster: Cluster, operation: Op, team: tuple[int, ...], root: int = -1
) -> float:
    """How long one message within a team holds its slowest resource, per byte of a replica's."""
    backend = backend_of(cluster)
    carried = backend.carried_as(operation, root < cluster.world_size)
    edges = backend.edges_of(carried, team, root)
    return float(load_of(edges, resources_of(cluster)).max())
