"""From what a request names to documents: graphs and clusters, bundled or in the database, and the
domain or tuning request that they make."""

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
from autosync.api.spec import ModelSpec, RankSpec, TuningSpec
from autosync.bundled_data import data_file
from autosync.cluster import Cluster
from autosync.cluster_file import bundled_clusters
from autosync.cluster_file import load_cluster as load_cluster_file
from autosync.domain import Domain, Profile, usual_optimizer
from autosync.errors import InvalidInput, NotFound
from autosync.graph import ModelGraph
from autosync.models import BUNDLED, bundled, is_bundled
from autosync.profiling import estimate_profile


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


def ranked_domain(session: Session, spec: RankSpec) -> Domain:
    """
    Raises:
        NotFound: no such graph or cluster. InvalidInput: what does not fit the graph.
        NotSupported: a pin that cannot be run.
    """
    domain = domain_named(session, spec, spec.cluster, spec.profile)
    check_counts(spec.space)
    check_pins(spec.space, domain)
    return domain


def domain_named(
    session: Session, spec: ModelSpec, cluster_name: str, profile: Profile | None = None
) -> Domain:
    """
    Raises:
        NotFound: no such graph or cluster. InvalidInput: the profile is for another graph, or
            nobody knows the optimizer.
    """
    graph = graph_named(session, spec.graph, spec.batch_size)
    cluster = cluster_named(session, cluster_name)
    profile = profile or estimated_profile(graph, cluster)
    domain = Domain(graph, cluster, profile, spec.optimizer or usual_optimizer(graph))
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


def _unknown(thing: str, name: str, known: list[str]) -> NotFound:
    bundled_ones = ", ".join(known)
    return not_found(
        thing, name, f"Post it to /v1/{thing}s first, or name a bundled one: {bundled_ones}."
    )
