"""The graph and the cluster that a request names: bundled ones, and those in the database."""

from typing import Annotated

from pydantic import BeforeValidator, Field
from sqlalchemy.orm import Session

from autosync.api.db.document_store import load_cluster, load_graph
from autosync.api.db.lookup import not_found
from autosync.api.db.tables import ClusterRow, GraphRow
from autosync.bundled_data import data_file
from autosync.cluster import Cluster
from autosync.cluster_file import bundled_clusters
from autosync.cluster_file import load_cluster as load_cluster_file
from autosync.domain import Optimizer, Profile, optimizer_named
from autosync.errors import InvalidInput, NotFound
from autosync.graph import ModelGraph
from autosync.models import BUNDLED, bundled, is_bundled
from autosync.optimizers import OptimizerName
from autosync.profiling import estimate_profile


def _optimizer(given: object) -> object:
    try:
        return optimizer_named(given) if isinstance(given, str) else given
    except InvalidInput as error:
        raise ValueError(f"{error.message} {error.remedy}") from None


OptimizerField = Annotated[
    Optimizer | None,
    BeforeValidator(_optimizer, json_schema_input_type=OptimizerName | Optimizer | None),
    Field(
        description="Its name, or what it keeps; by default adamw of a model with attention, else "
        "sgd_momentum."
    ),
]
"""Of a body; None where nothing is said."""


def graph_named(session: Session, name: str, batch_size: int | None) -> ModelGraph:
    """A graph by its id, or a bundled one by name.

    Raises:
        NotFound: neither. InvalidInput: a posted graph is for another batch size.
    """
    if not name.isalnum() or session.get(GraphRow, name) is None:
        if not is_bundled(name):
            raise _unknown("graph", name, list(BUNDLED))
        return bundled(name, batch_size)
    graph = load_graph(session, name)
    if batch_size not in (None, graph.batch_size):
        raise InvalidInput(
            f"graph {graph.name!r} is for batch size {graph.batch_size}, not {batch_size}.",
            thing="batch_size",
            value=batch_size,
            remedy="Leave batch_size out, or import the module again at that batch size.",
        )
    return graph


def cluster_named(session: Session, name: str) -> Cluster:
    """A cluster by its id, or a bundled one by name; raises NotFound."""
    if name.isalnum() and session.get(ClusterRow, name) is not None:
        return load_cluster(session, name)
    known = bundled_clusters()
    if name not in known:
        raise _unknown("cluster", name, list(known))
    return load_cluster_file(data_file("clusters", f"{name}.yaml"))


def estimated_profile(graph: ModelGraph, cluster: Cluster) -> Profile:
    """A roofline for the cluster's fastest device type; the simulators stretch it for others."""
    return estimate_profile(graph, cluster.fastest_device_type)


def _unknown(thing: str, name: str, known: list[str]) -> NotFound:
    bundled_ones = ", ".join(known)
    return not_found(
        thing, name, f"Post it to /v1/{thing}s first, or name a bundled one: {bundled_ones}."
    )
