"""The cluster: its document and what checks it, files and sizes of clusters, and rates of links."""

from autosync.cluster.cluster_document import (
    Backend,
    Cluster,
    Device,
    GpuLink,
    Link,
    MessageCost,
    MessageKind,
    Node,
    Transport,
)

__all__ = [
    "Backend",
    "Cluster",
    "Device",
    "GpuLink",
    "Link",
    "MessageCost",
    "MessageKind",
    "Node",
    "Transport",
]
