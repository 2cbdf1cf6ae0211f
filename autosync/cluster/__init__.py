"""The cluster D: hosts and their devices, the rates between them, and what messages cost there.
Documents only; imports device types and nothing above them."""

from autosync.cluster.cluster_checks import OPTIONAL_NUMBERS
from autosync.cluster.cluster_document import Cluster
from autosync.cluster.message_cost import Backend, MessageCost, MessageKind
from autosync.cluster.nodes import Device, Link, Node

__all__ = [
    "OPTIONAL_NUMBERS",
    "Backend",
    "Cluster",
    "Device",
    "Link",
    "MessageCost",
    "MessageKind",
    "Node",
]
