"""How large the graphs and clusters are that a request names, before they are parsed."""

from functools import cache

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from autosync.api.db.tables import ClusterRow, GraphRow
from autosync.cluster.cluster_file import bundled_clusters, load_cluster
from autosync.models import bundled, is_bundled


def graph_size(session: Session, name: str) -> tuple[int, int]:
    """Bytes of its document, and its variables; 0 bytes where it is bundled."""
    if is_bundled(name):
        return 0, _bundled_variables(name)
    if not name.isalnum():
        return 0, 0
    query = select(func.length(GraphRow.document), GraphRow.variables)
    return tuple(session.execute(query.where(GraphRow.id == name)).one_or_none() or (0, 0))


def cluster_size(session: Session, name: str) -> tuple[int, int]:
    """Bytes of its document, and its devices; 0 bytes where it is bundled."""
    if name in bundled_clusters():
        return 0, _bundled_devices(name)
    if not name.isalnum():
        return 0, 0
    query = select(func.length(ClusterRow.document), ClusterRow.world_size)
    return tuple(session.execute(query.where(ClusterRow.id == name)).one_or_none() or (0, 0))


@cache
def _bundled_variables(name: str) -> int:
    return len(bundled(name, None).variables)


@cache
def _bundled_devices(name: str) -> int:
    return load_cluster(name).world_size
