"""Before a tuning: what messages cost where it runs, and what kernels take, measured."""

from dataclasses import replace

from autosync.api.engine.database_store import TuningStore
from autosync.api.engine.tuning_request import TuningRequest
from autosync.errors import InvalidInput, NotSupported
from autosync.search.cluster_probe import probe_costs
from autosync.search.loop.outcome import TuningEvent
from autosync.trials.contract import Launcher
from autosync.trials.probes import profile_kernels, timing_pool


def with_measured_costs(
    request: TuningRequest, store: TuningStore, launcher: Launcher
) -> TuningRequest:
    """The request on a cluster with fitted communication costs; they become part of its domain.

    A request that brings costs, has begun, or asks for no probing stays as it is. Where its
    launcher cannot probe, the costs stay assumed and an event says so.
    """
    if request.domain.cluster.costs or not request.settings.probe or store.proposals():
        return request
    store.report(TuningEvent("opening", "measuring what messages cost"))
    try:
        found = probe_costs(
            launcher,
            request.domain.cluster,
            request.byte_scale,
            request.time_scale,
            brief=True,
            compute=request.compute,
            device=request.device,
        )
    except (NotSupported, InvalidInput) as reason:
        store.report(TuningEvent("opening", f"message costs are assumed: {reason.message}"))
        return request
    domain = replace(request.domain, cluster=found.cluster)
    store.use_domain(domain)
    return replace(request, domain=domain)


def with_measured_kernels(
    request: TuningRequest, store: TuningStore, launcher: Launcher
) -> TuningRequest:
    """The request with the profile of its kernels, measured on its workers; part of its domain.

    A request whose ranks wait in place of computing keeps its profile, which says how long.
    One that has begun keeps the profile that it began with.

    Raises:
        NotSupported: as `launcher.open`; or the workers could not run the kernels.
    """
    if request.compute != "kernels" or store.proposals():
        return request
    store.report(TuningEvent("opening", "measuring what the kernels take"))
    with timing_pool(launcher, request.workload) as pool:
        profile = profile_kernels(pool)
    domain = replace(request.domain, profile=profile)
    store.use_domain(domain)
    seconds = f"{profile.compute_seconds * 1e3:.1f} ms an iteration"
    store.report(TuningEvent("opening", f"predicting from {seconds} of compute: {profile.note}"))
    return replace(request, domain=domain)
