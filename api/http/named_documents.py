"""From what a request names to documents: graphs and clusters, bundled or in the database, and the
domain or tuning request that they make."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from autosync.api.db.database import Database
from autosync.api.db.document_store import load_cluster, load_graph
from autosync.api.db.lookup import not_found
from autosync.api.db.tables import ClusterRow, GraphRow
from autosync.api.engine.request_checks import (
    check_counts,
    check_optimizer,
    check_pins,
    refuse_unused,
)
from autosync.api.engine.tuning_request import TuningRequest, at_scales
from autosync.api.engine.worker_registry import refuse_without_gpus
from autosync.api.prediction_spec import RankSpec
from autosync.api.spec import ModelSpec, TuningSpec
from autosync.bundled_data import data_file
from autosync.cluster import Cluster
from autosync.cluster.cluster_file import bundled_clusters
from autosync.cluster.cluster_file import load_cluster as load_cluster_file
from autosync.compute_settings import at_precision, profile_at
from autosync.domain import Domain, Profile, usual_optimizer
from autosync.errors import InvalidInput, NotFound
from autosync.graph import ModelGraph
from autosync.models import BUNDLED, bundled, is_bundled


def graph_named(session: Session, name: str, batch_size: int | None) -> ModelGraph:
    """A graph by its id, or a bundled one by name.

    Raises:
        NotFound: neither. InvalidInput: a posted graph is for another batch size.
    """
    if not _is_stored(session, GraphRow, name):
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
    if _is_stored(session, ClusterRow, name):
        return load_cluster(session, name)
    known = bundled_clusters()
    if name not in known:
        raise _unknown("cluster", name, list(known))
    return load_cluster_file(data_file("clusters", f"{name}.yaml"))


def check_names(session: Session, graph: str, cluster: str) -> None:
    """Whether both are there, without a look into them; raises NotFound."""
    if not is_bundled(graph) and not _is_stored(session, GraphRow, graph):
        raise _unknown("graph", graph, list(BUNDLED))
    known = bundled_clusters()
    if cluster not in known and not _is_stored(session, ClusterRow, cluster):
        raise _unknown("cluster", cluster, list(known))


def ranked_domain(session: Session, spec: RankSpec) -> Domain:
    """
    Raises:
        NotFound: no such graph or cluster. InvalidInput: what does not fit the graph.
        InvalidStrategy, NotSupported: a pin that cannot be run.
    """
    domain = domain_named(session, spec, spec.cluster, spec.profile)
    check_counts(spec.space)
    check_pins(spec.space, domain)
    return domain


def domain_named(
    session: Session, spec: ModelSpec, cluster_name: str, profile: Profile | None = None
) -> Domain:
    """Without a profile compute is that of the cluster's fastest device type, which the simulators
    stretch for others.

    Raises:
        NotFound: no such graph or cluster. InvalidInput: the profile is for another graph, or
            nobody knows the optimizer, or the settings do not go with the graph or the profile.
    """
    settings = spec.compute_settings
    graph = at_precision(graph_named(session, spec.graph, spec.batch_size), settings.precision)
    cluster = cluster_named(session, cluster_name)
    profile = profile_at(graph, cluster.fastest_device_type, settings, profile)
    optimizer = spec.optimizer or usual_optimizer(graph)
    domain = Domain(graph, cluster, profile, optimizer, spec.accumulate)
    check_optimizer(domain)
    return domain


def tuning_request(database: Database, spec: TuningSpec) -> TuningRequest:
    """
    Raises:
        NotFound: no such graph or cluster.
        InvalidInput: the profile is for another graph, or has no effect on kernels; nothing that
            was measured before runs on the domain.
        NotSupported: no worker has the GPUs that are asked for.
    """
    from autosync.search.loop.earlier_trials import usable  # loads numba

    refuse_unused(spec.compute, {"profile": spec.profile})
    with database.reading() as session:
        domain = domain_named(session, spec, spec.cluster, spec.profile)
        request = TuningRequest(
            domain=domain,
            earlier=spec.earlier and usable(spec.earlier, domain, spec.space),
            settings=spec.settings,
            space=spec.space,
            simulator=spec.simulator,
            launcher=spec.launcher,
            compute=spec.compute,
            device=spec.compute_device,
        )
        refuse_without_gpus(session, request)
    return at_scales(request, spec.byte_scale, spec.time_scale)


def _is_stored(session: Session, row: type[GraphRow] | type[ClusterRow], name: str) -> bool:
    """PostgreSQL refuses some characters."""
    return name.isalnum() and session.scalar(select(row.id).where(row.id == name)) is not None


def _unknown(thing: str, name: str, known: list[str]) -> NotFound:
    bundled_ones = ", ".join(known)
    return not_found(
        thing, name, f"Post it to /v1/{thing}s first, or name a bundled one: {bundled_ones}."
    )
