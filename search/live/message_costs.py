"""What messages cost on a running job's own ranks: timed before the search, as a probe does."""

import time
from collections.abc import Callable
from dataclasses import replace

from autosync.domain import Domain
from autosync.errors import InvalidInput, NotSupported
from autosync.search.cluster_probe import BRIEF_REPEATS
from autosync.search.loop.outcome import OnEvent, TuningEvent
from autosync.search.loop.settings import Settings
from autosync.simulator.fitting.message_costs import with_message_costs
from autosync.trials.contract import TrialFailed
from autosync.trials.probes import MessagePool, brief_sizes, measure_messages
from autosync.units import MIB

ROOM_BYTES = 256 * MIB
"""As `probes.ROOM_BYTES`: less, beside what the job holds already."""


def measure_message_costs(
    pool: MessagePool,
    domain: Domain,
    settings: Settings,
    until: float,
    on_event: OnEvent,
    clock: Callable[[], float] = time.monotonic,
) -> Domain:
    """The domain with the costs of single messages in its cluster, fitted to what its ranks take;
    or as it was, where they cannot be measured by `until` (of `clock`, in seconds), which an event
    says. As for a service's tunings whose compute is real, whole iterations are not fitted."""

    def assumed(why: str) -> Domain:
        on_event(TuningEvent("opening", f"message costs are assumed: {why}"))
        return domain

    if not settings.probe:
        return assumed("the settings ask for no probe.")
    on_event(TuningEvent("opening", "measuring what messages cost"))
    try:
        samples = measure_messages(
            pool,
            domain.cluster,
            brief_sizes(domain.cluster, 1.0, ROOM_BYTES),
            BRIEF_REPEATS,
            out_of_time=lambda: clock() >= until,
        )
    except (InvalidInput, NotSupported) as reason:
        return assumed(reason.message)
    except TrialFailed as failure:
        return assumed(failure.error.message)
    return replace(domain, cluster=with_message_costs(domain.cluster, samples))
