"""Before a tuning: what messages cost where it runs, measured rather than assumed."""

from dataclasses import replace

from api.store import DatabaseStore
from api.tuning import Job
from autosync.errors import InvalidInput, NotSupported
from autosync.trials.contract import Launcher
from search.outcome import Event
from search.probing import probe_costs


def calibrated(job: Job, store: DatabaseStore, launcher: Launcher) -> Job:
    """The job on a cluster with fitted communication costs; they become part of its domain.

    A job that brings costs, has begun, or asks for no probing stays as it is. Where its launcher
    cannot probe, the costs stay assumed and the tuning says so.
    """
    if job.domain.cluster.costs or not job.settings.probe or store.proposals():
        return job
    store.report(Event("opening", "measuring what messages cost"))
    try:
        found = probe_costs(
            launcher, job.domain.cluster, job.byte_scale, job.time_scale, brief=True
        )
    except (NotSupported, InvalidInput) as reason:
        store.report(Event("opening", f"message costs are assumed: {reason.message}"))
        return job
    domain = replace(job.domain, cluster=found.cluster)
    store.use_domain(domain)
    return replace(job, domain=domain)
