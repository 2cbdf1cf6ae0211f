"""What one pass of a trial measured, and when it counts as disturbed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autosync.bundle import Bundle
from autosync.trials.contract import TrialError
from autosync.trials.measured_timeline import MeasuredTimeline
from autosync.trials.trial_failure import TrialFailed

LOAD_LIMIT = 0.12
"""Share of the CPU used by others above which a pass is repeated (measured on the testbed)."""

SPREAD_LIMIT = 0.06
"""Spread within a pass above which it is repeated (measured on the testbed)."""


@dataclass(frozen=True, slots=True)
class PassMeasurement:
    """One pass, in the domain's time. Fields are those of a `TrialResult`.

    overhead_seconds: wall time around its iterations, on this machine's clock.
    peak_memory_bytes: None where a kernel does not tell.
    sent_bytes: by each node's NIC in one iteration; empty where it is not known.
    """

    iteration_seconds: tuple[float, ...]
    load: float
    overhead_seconds: float
    peak_memory_bytes: int | None
    sent_bytes: tuple[int, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    timeline: MeasuredTimeline | None = None

    @property
    def median_seconds(self) -> float:
        return float(np.median(self.iteration_seconds))

    @property
    def load_excess(self) -> float:
        """Outside load over its limit: above 1 others disturbed the pass too much."""
        return self.load / LOAD_LIMIT

    @property
    def disturbance(self) -> float:
        """Above 1: outside load or spread exceeds its limit."""
        return max(self.load_excess, relative_spread(self.iteration_seconds) / SPREAD_LIMIT)


def relative_spread(periods: Sequence[float]) -> float:
    """(p90 - p10) / median."""
    low, middle, high = np.percentile(periods, (10, 50, 90))
    return float((high - low) / middle) if middle > 0 else 0.0


def may_drift(bundle: Bundle) -> bool:
    """Whether its replicas may end unequal, by late updates or by what encodings lose."""
    return bundle.plan.staleness > 0 or any(message.encoding for message in bundle.plan.messages)


def refuse_drift(bundle: Bundle, digests: Sequence[float]) -> None:
    """Replicas that end a synchronous exact trial unequal were not synchronized. Those whose
    values have all become NaN are equal.

    Raises:
        TrialFailed: with every rank's digest.
    """
    unequal = np.unique(digests, equal_nan=True).size > 1
    if unequal and not may_drift(bundle):
        text = f"the replicas ended unequal: digests {digests}."
        raise TrialFailed(TrialError("crashed", text))
