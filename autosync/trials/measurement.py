"""From the ranks' answers to figures: one pass's periods, load and bytes; a message's seconds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from autosync.bundle import Bundle
from autosync.trials.byte_scale import kept_messages
from autosync.trials.contract import TrialError, TrialRequest, Workload
from autosync.trials.iteration_recording import measured_timeline
from autosync.trials.machine import outside_share
from autosync.trials.measured_timeline import MeasuredTimeline
from autosync.trials.pool.worker_group import Failed, WorkerGroup

LOAD_LIMIT = 0.12
"""Share of the CPU used by others above which a trial is repeated (measured on the testbed)."""

SPREAD_LIMIT = 0.06
"""Spread within a trial above which it is repeated (measured on the testbed)."""


class Pass(Protocol):
    @property
    def contamination(self) -> float:
        """Above 1: others disturbed it too much."""
        ...


P = TypeVar("P", bound=Pass)


def until_clean(measure: Callable[[P | None], P], repeats: int) -> list[P]:
    """Passes until one is not contaminated; `repeats` more than the first at the most.

    measure: is given the pass before.
    """
    made = [measure(None)]
    while made[-1].contamination > 1 and len(made) <= repeats:
        made.append(measure(made[-1]))
    return made


@dataclass(frozen=True, slots=True)
class Measurement:
    """One pass, in the domain's time.

    overhead_seconds: wall time around its iterations, on this machine's clock. sent_bytes: of
    each node's NIC, an iteration; where that is not emulated, other traffic of the host included.
    """

    iteration_seconds: tuple[float, ...]
    load: float
    overhead_seconds: float
    peak_memory_bytes: int
    sent_bytes: tuple[int, ...]
    timeline: MeasuredTimeline | None

    @property
    def loaded(self) -> bool:
        return self.load > LOAD_LIMIT

    @property
    def contamination(self) -> float:
        """Above 1: outside load or spread exceeds its limit."""
        return max(self.load / LOAD_LIMIT, spread(self.iteration_seconds) / SPREAD_LIMIT)


def measurement(
    request: TrialRequest,
    workload: Workload,
    crew: WorkerGroup,
    answers: Sequence[dict[str, Any]],
    wall_seconds: float,
) -> Measurement:
    """answers: of the crew's ranks, in rank order.

    Raises:
        Failed: the replicas ended unequal.
    """
    refuse_drift(request.bundle, [answer["digest"] for answer in answers])
    starts = np.array([answer["starts"] for answer in answers]).max(axis=0)
    finished = max(answer["finished"] for answer in answers)
    periods = np.diff(starts)[request.warmup :] / workload.time_scale
    loads = []
    for host in set(crew.hosts):
        here = [a for a, of in zip(answers, crew.hosts, strict=True) if of == host]
        own = sum(answer["cpu_seconds"] for answer in here)
        loads.append(outside_share(here[0]["busy_seconds"], own, here[0]["total_seconds"]))
    return Measurement(
        iteration_seconds=tuple(float(period) for period in periods),
        load=max(loads),
        overhead_seconds=max(0.0, wall_seconds - float(finished - starts[0])),
        peak_memory_bytes=max(answer["peak_memory_bytes"] for answer in answers),
        sent_bytes=_by_node(workload, [a["sent_bytes"] // request.iterations for a in answers]),
        timeline=_timeline(request, workload, crew, answers) if request.record else None,
    )


def _timeline(
    request: TrialRequest, workload: Workload, crew: WorkerGroup, answers: Sequence[dict[str, Any]]
) -> MeasuredTimeline:
    plan, graph = request.bundle.plan, workload.domain.graph
    everything = tuple(range(len(plan.messages)))
    kept = kept_messages(plan, graph, workload.byte_scale) if crew.scaled else everything
    return measured_timeline(answers, crew.hosts, request.warmup, workload.time_scale, kept)


def _by_node(workload: Workload, by_rank: Sequence[int]) -> tuple[int, ...]:
    """Ranks of a node see the same NIC."""
    nodes = workload.domain.cluster.node_of_server()[: len(by_rank)].tolist()
    return tuple(dict(zip(nodes, by_rank, strict=True)).values())


def spread(periods: Sequence[float]) -> float:
    """(p90 - p10) / median."""
    low, middle, high = np.percentile(periods, (10, 50, 90))
    return float((high - low) / middle) if middle > 0 else 0.0


def message_seconds(answers: Sequence[dict[str, Any]]) -> list[float]:
    """Seconds of each of a row of messages: from the latest start to the latest end over the
    ranks of a host, on the host where that is longest. Hosts have clocks of their own.

    answers: of all ranks, each with its `host`; one that sits out has no moments.
    """
    partners = [answer for answer in answers if answer["started"]]
    spans = []
    for host in {answer["host"] for answer in partners}:
        here = [answer for answer in partners if answer["host"] == host]
        started = np.array([answer["started"] for answer in here])
        ended = np.array([answer["ended"] for answer in here])
        spans.append(ended.max(axis=0) - started.max(axis=0))
    return [float(seconds) for seconds in np.max(spans, axis=0)]


def refuse_drift(bundle: Bundle, digests: Sequence[float]) -> None:
    """Replicas that end a synchronous exact trial unequal were not synchronized. Those whose
    values have all become NaN are equal.

    Raises:
        Failed: with every rank's digest.
    """
    lossy = any(message.encoding for message in bundle.plan.messages)
    unequal = np.unique(digests, equal_nan=True).size > 1
    if bundle.plan.staleness == 0 and not lossy and unequal:
        raise Failed(TrialError("crashed", f"the replicas ended unequal: digests {digests}."))
