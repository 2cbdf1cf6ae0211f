"""How much messages slow compute beside them: one recorded trial before the search."""

from dataclasses import replace

from autosync.bundle import make_bundle
from autosync.domain import Domain
from autosync.search.designs.building_blocks import assemble, collective
from autosync.search.loop.outcome import OnEvent, TuningEvent
from autosync.search.loop.settings import Settings
from autosync.simulator.fitting.message_costs import fit_overlap_slowdown
from autosync.strategy import AllReduce
from autosync.trials.contract import Pool, TrialRequest, TrialResult

MESSAGES = 16
"""Of the trial, about: so many that some are under way during most of backward, and so few that
what each costs the processors does not count."""


def measure_overlap(pool: Pool, domain: Domain, settings: Settings, on_event: OnEvent) -> Domain:
    """The domain with its cluster's `overlap_slowdown` as measured, or as it was where a trial
    cannot tell it, which an event says.

    pool: of workers that compute for real and record in host memory.
    """
    result = pool.run(
        overlap_request(
            domain, "overlap", settings.warmup, settings.iterations, settings.timeout_seconds
        )
    )
    slowdown = recorded_slowdown(result, domain)
    if slowdown is None:
        why = result.error.message if result.error else "no trial shows it"
        on_event(TuningEvent("opening", f"by how much messages slow compute is not known: {why}"))
        return domain
    on_event(
        TuningEvent("opening", f"compute is {slowdown:.0%} slower while messages are under way")
    )
    return replace(domain, cluster=replace(domain.cluster, overlap_slowdown=round(slowdown, 4)))


def overlap_request(
    domain: Domain,
    key: str,
    warmup: int = 2,
    iterations: int = 5,
    timeout_seconds: float = 60.0,
) -> TrialRequest:
    """A trial whose all-reduces are under way during most of backward."""
    each_bytes = -(-domain.graph.size_bytes // MESSAGES)
    strategy = assemble(domain, collective(domain, AllReduce(0)), limit_bytes=each_bytes)
    return TrialRequest(
        key=key,
        bundle=make_bundle(strategy, domain),
        warmup=warmup,
        iterations=iterations,
        timeout_seconds=timeout_seconds,
        record=True,
    )


def recorded_slowdown(result: TrialResult, domain: Domain) -> float | None:
    """None where the trial failed or cannot tell."""
    return fit_overlap_slowdown([result.timeline] if result.timeline else [], domain)
