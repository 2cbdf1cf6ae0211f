"""How backends move messages: a file for each, a line in the table of all.

Imports of the simulator only `topology`; nothing outside asks which backend it is.
"""

from autosync.cluster import Backend, Cluster
from autosync.simulator.backends.backend import BackendModel
from autosync.simulator.backends.gloo import GLOO
from autosync.simulator.backends.nccl import NCCL

BACKENDS: dict[Backend, BackendModel] = {"gloo": GLOO, "nccl": NCCL}


def backend_of(cluster: Cluster) -> BackendModel:
    """The model of the backend that a cluster's ranks use."""
    return BACKENDS[cluster.backend]


__all__ = ["BACKENDS", "BackendModel", "backend_of"]
