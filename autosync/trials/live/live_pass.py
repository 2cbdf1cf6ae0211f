"""One pass of a trial in a running job: from what the ranks answer to its measurement."""

from collections.abc import Sequence

import numpy as np

from autosync.trials.contract import TrialRequest
from autosync.trials.iteration_recording import measured_timeline
from autosync.trials.live.live_commands import LivePass
from autosync.trials.live.outside_load import largest_outside_share
from autosync.trials.measured_timeline import MeasuredTimeline
from autosync.trials.measurement import PassMeasurement


def live_measurement(request: TrialRequest, answers: Sequence[LivePass]) -> PassMeasurement:
    """answers: of all ranks, in rank order."""
    starts = np.array([answer.steps.starts for answer in answers]).max(axis=0)
    peaks = [answer.peak_memory_bytes for answer in answers if answer.peak_memory_bytes is not None]
    return PassMeasurement(
        iteration_seconds=tuple(float(period) for period in np.diff(starts)[request.warmup :]),
        load=largest_outside_share([(answer.host, answer.steps.cpu_use) for answer in answers]),
        overhead_seconds=max(answer.overhead_seconds for answer in answers),
        peak_memory_bytes=max(peaks) if len(peaks) == len(answers) else None,
        sent_bytes=sent_by_node(answers, request.iterations),
        versions=answers[0].versions,
        timeline=_timeline(request, answers),
    )


def sent_by_node(answers: Sequence[LivePass], iterations: int) -> tuple[int, ...]:
    """Of each node's NIC in one iteration, in rank order; none where nodes share a kernel, whose
    counters miss what they send each other, or where messages need not pass it."""
    first = {answer.node: answer for answer in reversed(answers)}
    nodes = [first[name] for name in dict.fromkeys(answer.node for answer in answers)]
    sent = [node.steps.sent_bytes for node in nodes if node.counts_bytes]
    if len(sent) < len(nodes) or len({node.host for node in nodes}) < max(2, len(nodes)):
        return ()
    return tuple(bytes_ // iterations for bytes_ in sent)


def _timeline(request: TrialRequest, answers: Sequence[LivePass]) -> MeasuredTimeline | None:
    recorded = [one.steps.recorded for one in answers if one.steps.recorded is not None]
    if len(recorded) < len(answers):
        return None
    return measured_timeline(
        [steps.starts for steps in recorded],
        [steps.recording for steps in recorded],
        [answer.host for answer in answers],
        request.warmup,
        1.0,
        range(len(request.bundle.plan.messages)),
    )
