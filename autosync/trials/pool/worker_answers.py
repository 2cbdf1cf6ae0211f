"""From what the workers answer to figures: a pass's measurement, a message's seconds."""

from collections.abc import Sequence

import numpy as np

from autosync.trials.byte_scale import surviving_messages
from autosync.trials.contract import TrialRequest, Workload
from autosync.trials.iteration_recording import measured_timeline
from autosync.trials.machine import outside_share
from autosync.trials.measured_timeline import MeasuredTimeline
from autosync.trials.measurement import PassMeasurement, refuse_drift
from autosync.trials.pool.worker_group import WorkerGroup
from autosync.trials.worker.commands import MessagesTimed, PassDone


def pass_measurement(
    request: TrialRequest,
    workload: Workload,
    group: WorkerGroup,
    answers: Sequence[PassDone],
    wall_seconds: float,
    counts_bytes: bool,
) -> PassMeasurement:
    """answers: of the group's ranks, in rank order. counts_bytes: each node's NIC has a counter of
    its own.

    Raises:
        TrialFailed: the replicas ended unequal.
    """
    refuse_drift(request.bundle, [answer.digest for answer in answers])
    starts = np.array([answer.measured.starts for answer in answers]).max(axis=0)
    finished = max(answer.measured.finished for answer in answers)
    periods = np.diff(starts)[request.warmup :] / workload.time_scale
    sent = [answer.measured.sent_bytes // request.iterations for answer in answers]
    return PassMeasurement(
        iteration_seconds=tuple(float(period) for period in periods),
        load=_outside_load(group.hosts, answers),
        overhead_seconds=max(0.0, wall_seconds - float(finished - starts[0])),
        peak_memory_bytes=max(answer.peak_memory_bytes for answer in answers),
        sent_bytes=_by_node(workload, sent) if counts_bytes else (),
        versions=group.versions,
        timeline=_timeline(request, workload, group, answers),
    )


def _outside_load(hosts: Sequence[str], answers: Sequence[PassDone]) -> float:
    """The share of the CPU that others used, on the host where that is largest."""
    loads = []
    for host in set(hosts):
        here = [one.measured for one, of in zip(answers, hosts, strict=True) if of == host]
        own = sum(one.cpu_seconds for one in here)
        loads.append(outside_share(here[0].busy_seconds, own, here[0].total_seconds))
    return max(loads)


def _timeline(
    request: TrialRequest, workload: Workload, group: WorkerGroup, answers: Sequence[PassDone]
) -> MeasuredTimeline | None:
    recordings = [answer.recording for answer in answers if answer.recording is not None]
    if len(recordings) < len(answers):
        return None
    plan = request.bundle.plan
    plan_index: Sequence[int] = range(len(plan.messages))
    if group.scaled:
        plan_index = surviving_messages(plan, workload.domain.graph, workload.byte_scale)
    return measured_timeline(
        [answer.measured.starts for answer in answers],
        recordings,
        group.hosts,
        request.warmup,
        workload.time_scale,
        plan_index,
        workload.byte_scale,
    )


def _by_node(workload: Workload, by_rank: Sequence[int]) -> tuple[int, ...]:
    """Ranks of a node see the same NIC."""
    nodes = workload.domain.cluster.node_of_server()[: len(by_rank)].tolist()
    return tuple(dict(zip(nodes, by_rank, strict=True)).values())


def message_seconds(answers: Sequence[MessagesTimed]) -> list[float]:
    """Seconds of each of a row of messages: from the latest start to the latest end over the
    ranks of a host, on the host where that is longest. Hosts have clocks of their own.

    answers: of all ranks.
    """
    partners = [answer for answer in answers if answer.started]
    spans = []
    for host in {answer.host for answer in partners}:
        here = [answer for answer in partners if answer.host == host]
        started = np.array([answer.started for answer in here])
        ended = np.array([answer.ended for answer in here])
        spans.append(ended.max(axis=0) - started.max(axis=0))
    return [float(seconds) for seconds in np.max(spans, axis=0)]
