"""One pass of a trial in a running job: from the ranks' answers to a measurement."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autosync.trials.contract import TrialRequest
from autosync.trials.iteration_recording import measured_timeline
from autosync.trials.live.outside_load import outside_load
from autosync.trials.measured_timeline import MeasuredTimeline
from autosync.trials.measurement import LOAD_LIMIT


@dataclass(frozen=True, slots=True)
class LivePass:
    """As in a `TrialResult`. peak_memory_bytes: None where a kernel does not tell."""

    iteration_seconds: tuple[float, ...]
    load: float
    overhead_seconds: float
    peak_memory_bytes: int | None
    sent_bytes: tuple[int, ...]
    versions: tuple[tuple[str, str], ...]
    timeline: MeasuredTimeline | None

    @property
    def contamination(self) -> float:
        """Above 1: outside load exceeds its limit. How much periods spread is the job's own."""
        return self.load / LOAD_LIMIT


def measured_pass(request: TrialRequest, answers: Sequence[dict[str, Any]]) -> LivePass:
    """answers: of all ranks, in rank order; see `live_job.run_trial`."""
    starts = np.array([answer["starts"] for answer in answers]).max(axis=0)
    peaks = [answer["peak_memory_bytes"] for answer in answers]
    return LivePass(
        iteration_seconds=tuple(float(period) for period in np.diff(starts)[request.warmup :]),
        load=outside_load(answers),
        overhead_seconds=max(answer["around_seconds"] for answer in answers),
        peak_memory_bytes=None if None in peaks else max(peaks),
        sent_bytes=sent_by_node(answers, request.iterations),
        versions=tuple(sorted(answers[0]["versions"].items())),
        timeline=_timeline(request, answers),
    )


def sent_by_node(answers: Sequence[dict[str, Any]], iterations: int) -> tuple[int, ...]:
    """Of each node's NIC in one iteration, in rank order; none where nodes share a kernel, whose
    counters miss what they send each other, or where messages need not pass it."""
    first = {answer["node"]: answer for answer in reversed(answers)}
    nodes = [first[name] for name in dict.fromkeys(answer["node"] for answer in answers)]
    counted = all(node["sent_bytes"] is not None for node in nodes)
    if not counted or len({node["host"] for node in nodes}) < max(2, len(nodes)):
        return ()
    return tuple(node["sent_bytes"] // iterations for node in nodes)


def _timeline(request: TrialRequest, answers: Sequence[dict[str, Any]]) -> MeasuredTimeline | None:
    recorded = [answer["recorded"] for answer in answers]
    if None in recorded:
        return None
    hosts = [answer["host"] for answer in answers]
    every_message = range(len(request.bundle.plan.messages))
    return measured_timeline(recorded, hosts, request.warmup, 1.0, every_message)
