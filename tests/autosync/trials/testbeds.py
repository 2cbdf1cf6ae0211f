"""Whether testbeds can be built where the tests run."""

from functools import cache

from autosync.cluster import Cluster, Device, Node
from autosync.errors import NotSupported
from autosync.trials.testbed import namespaces


@cache
def can_shape_links() -> bool:
    """Whether this machine can shape links: builds a testbed of two nodes and removes it."""
    nodes = tuple(Node(f"10.0.0.{i}", (Device("cpu"),), 0.1) for i in (1, 2))
    try:
        namespaces.down(namespaces.up(Cluster("available", nodes)))
    except NotSupported:
        return False
    return True
