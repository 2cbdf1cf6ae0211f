"""Servers that are ranks under NCCL, which serves them one after another."""

from autosync.cluster import Cluster
from autosync.simulator.backends import backend_of
from autosync.strategy import ParameterServer, Strategy

ONE_BY_ONE = (
    "servers that are ranks are served one after another under NCCL, since a communicator runs "
    "one operation at a time: with n of them, each waits for n - 1 others. Dedicated server hosts "
    "(`server_only: true`) or a reduce-scatter (`zero1`, `dear`) do not wait so."
)


def served_one_by_one(strategy: Strategy, cluster: Cluster) -> bool:
    """Whether several ranks own variables of the strategy and NCCL moves their messages."""
    owners = {
        shard.server
        for choice in strategy.choices
        for shard in choice.shards
        if isinstance(shard, ParameterServer) and shard.server < cluster.world_size
    }
    return not backend_of(cluster).streams and len(owners) > 1
