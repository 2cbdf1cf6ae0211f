"""From a request to a job: names and ids become documents, and all of it is checked."""

from autosync.api.db.database import Database
from autosync.api.engine.tuning_request import TuningRequest, enqueue, refuse_unused, usual_scales
from autosync.api.http.schemas import TuningBody
from autosync.api.views.catalogue import cluster_named, estimated_profile, graph_named
from autosync.domain import Domain
from autosync.search.loop.settings import Settings


def submit(database: Database, request: TuningBody) -> str:
    """Check and queue a tuning; its id.

    Raises:
        NotFound: no such graph or cluster.
        InvalidInput: the profile or a pin is for another graph, or compute and its device do not
            go with the rest.
        NotSupported: the operator has not set up the launcher.
    """
    with database.reading() as session:
        graph = graph_named(session, request.graph, request.batch_size)
        cluster = cluster_named(session, request.cluster)
    refuse_unused(request.compute, {"profile": request.profile})
    profile = request.profile or estimated_profile(graph, cluster)
    domain = Domain(graph, cluster, profile, request.optimizer)
    usual_bytes, usual_time = usual_scales(domain, request.launcher, request.compute)
    job = TuningRequest(
        domain=domain,
        settings=Settings(
            budget=request.budget,
            proposals=request.proposals,
            repeats=request.repeats,
            seed=request.seed,
            warmup=request.warmup,
            iterations=request.iterations,
            probe=request.probe,
        ),
        space=request.space,
        simulator=request.simulator,
        launcher=request.launcher,
        byte_scale=usual_bytes if request.byte_scale is None else request.byte_scale,
        time_scale=usual_time if request.time_scale is None else request.time_scale,
        compute=request.compute,
        device=request.compute_device,
    )
    return enqueue(database, job)
