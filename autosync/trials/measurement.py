"""Combines the ranks' answers of a pass into its measurement, and decides whether it was
disturbed."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.bundle import Bundle
from autosync.extensions.registry import iterations_in_flight
from autosync.trials.commands import MessagesTimed, PassDone, RecordedDeal, RecordedPass
from autosync.trials.contract import (
    ComputeTimes,
    DealTimes,
    MeasuredTimeline,
    MessageTimes,
    Phase,
    RankTimeline,
    TrialError,
    TrialFailed,
    TrialRequest,
)
from autosync.trials.machine import outside_share

Span = tuple[Phase, float, float]
DECIMALS = 7
"""Of seconds in the document: a tenth of a microsecond, below what the clock is good for."""

LOAD_LIMIT = 0.12
"""Share of the CPU used by others above which a pass is repeated (measured on the testbed)."""

SPREAD_LIMIT = 0.06
"""Spread within a pass above which it is repeated (measured on the testbed)."""


@dataclass(frozen=True, slots=True)
class PassMeasurement:
    """One pass, in the domain's time. Fields are those of a `TrialResult`.

    overhead_seconds: wall time around its iterations, on this machine's clock.
    peak_memory_bytes: None where a kernel does not report it.
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
        """Outside load over its limit: above 1, other processes disturbed the pass too much."""
        return self.load / LOAD_LIMIT

    @property
    def disturbance(self) -> float:
        """Above 1: outside load or spread exceeds its limit."""
        return max(self.load_excess, relative_spread(self.iteration_seconds) / SPREAD_LIMIT)


def relative_spread(periods: Sequence[float]) -> float:
    """(p90 - p10) / median."""
    low, middle, high = np.percentile(periods, (10, 50, 90))
    return float((high - low) / middle) if middle > 0 else 0.0


def pass_measurement(
    request: TrialRequest,
    answers: Sequence[PassDone],
    wall_seconds: float,
    *,
    time_scale: float = 1.0,
    byte_scale: float = 1.0,
    plan_index: Sequence[int] | None = None,
    nics: Sequence[Hashable] = (),
    versions: tuple[tuple[str, str], ...] = (),
) -> PassMeasurement:
    """answers: of all ranks, in rank order. wall_seconds: of the whole pass. plan_index: the place
    in the requested plan of every message that was shipped; None where it was shipped whole. nics:
    of every rank, the one whose bytes it counted; empty where NICs have no counters of their own.

    Raises:
        TrialFailed: the replicas ended unequal.
    """
    refuse_drift(request.bundle, [answer.digest for answer in answers])
    measured = [answer.measured for answer in answers]
    hosts = [answer.host for answer in answers]
    latest = latest_starts([one.starts for one in measured], hosts)
    periods = np.diff(latest)[request.warmup :] / time_scale
    peaks = [answer.peak_memory_bytes for answer in answers if answer.peak_memory_bytes is not None]
    sent = dict(zip(reversed(nics), (one.sent_bytes for one in reversed(measured)), strict=False))
    recordings = [answer.recording for answer in answers if answer.recording is not None]
    timeline = None
    if len(recordings) == len(answers):
        whole = range(len(request.bundle.plan.messages))
        timeline = measured_timeline(
            [one.starts for one in measured],
            recordings,
            hosts,
            request.warmup,
            time_scale,
            whole if plan_index is None else plan_index,
            byte_scale,
        )
    return PassMeasurement(
        iteration_seconds=tuple(float(period) for period in periods),
        load=outside_load(answers),
        overhead_seconds=max(
            0.0, wall_seconds - max(one.finished - one.starts[0] for one in measured)
        ),
        peak_memory_bytes=max(peaks) if len(peaks) == len(answers) else None,
        sent_bytes=tuple(sent[nic] // request.iterations for nic in dict.fromkeys(nics)),
        versions=versions,
        timeline=timeline,
    )


def outside_load(answers: Sequence[PassDone]) -> float:
    """The share of the CPU that others used, on the host where that is largest."""
    loads = []
    for host in {answer.host for answer in answers}:
        here = [answer.measured for answer in answers if answer.host == host]
        own_seconds = sum(one.cpu_seconds for one in here)
        loads.append(outside_share(here[0].busy_seconds, own_seconds, here[0].total_seconds))
    return max(loads)


def may_drift(bundle: Bundle) -> bool:
    """Whether its replicas may end unequal, by late updates or by what encodings lose."""
    plan = bundle.plan
    late = iterations_in_flight(plan.extensions) > 0
    return late or any(message.encoding for message in plan.messages)


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


def measured_timeline(
    rank_starts: Sequence[Sequence[float]],
    recordings: Sequence[RecordedPass],
    hosts: Sequence[str],
    warmup: int,
    time_scale: float,
    plan_index: Sequence[int],
    byte_scale: float = 1.0,
) -> MeasuredTimeline:
    """The timeline of the usual one among a pass's measured iterations; of an iteration of several
    batches, from the last batch on, with which messages travel.

    rank_starts: of the ranks, in rank order, the starts of all forward passes and one moment after
        the last iteration. recordings, hosts: of the ranks; each host has a clock of its own.
    plan_index: the index in the requested plan of every message that was shipped. byte_scale: the
        part of the samples' bytes that was dealt.
    """
    latest = latest_starts(rank_starts, hosts)
    which = _usual_iteration(latest, warmup)
    begun = [_last_batches(*of) for of in zip(rank_starts, recordings, strict=True)]
    by_host = {
        host: max(begun[rank][which] for rank, of in enumerate(hosts) if of == host)
        for host in set(hosts)
    }
    shown_seconds = latest[which + 1] - _latest(begun, rank_starts, hosts)[which]
    return MeasuredTimeline(
        step_seconds=float(shown_seconds) / time_scale,
        clock="shared" if len(by_host) == 1 else "by host",
        ranks=tuple(
            _rank_timeline(
                _phases(mine, begun[rank], recordings[rank], which),
                recordings[rank],
                which,
                by_host[hosts[rank]],
                time_scale,
                plan_index,
                byte_scale,
            )
            for rank, mine in enumerate(rank_starts)
        ),
    )


def latest_starts(
    rank_starts: Sequence[Sequence[float]], hosts: Sequence[str]
) -> NDArray[np.float64]:
    """When the last rank has begun each iteration, since the first one began; hosts have clocks of
    their own, which are compared by their first start. Arguments as for `measured_timeline`."""
    return _latest(rank_starts, rank_starts, hosts)


def _latest(
    rank_moments: Sequence[Sequence[float]],
    rank_starts: Sequence[Sequence[float]],
    hosts: Sequence[str],
) -> NDArray[np.float64]:
    """As `latest_starts`, of other moments of each iteration."""
    moments, starts = np.array(rank_moments), np.array(rank_starts)
    on_hosts = [[of == host for of in hosts] for host in dict.fromkeys(hosts)]
    latest = [moments[here].max(axis=0) - starts[here, 0].max() for here in on_hosts]
    found: NDArray[np.float64] = np.max(latest, axis=0)
    return found


def _last_batches(starts: Sequence[float], recording: RecordedPass) -> Sequence[float]:
    """When the last batch of each iteration began. The only one begins with its iteration."""
    batches = len(recording.forwards) // len(recording.backwards)
    return starts if batches == 1 else recording.begins[batches - 1 :: batches]


def _usual_iteration(starts: NDArray[np.float64], warmup: int) -> int:
    """The measured iteration whose period is nearest to the median; not the last of several,
    which no forward pass follows."""
    periods = np.diff(starts)[warmup:]
    candidates = periods[:-1] if len(periods) > 1 else periods
    return warmup + int(np.argmin(abs(candidates - np.median(periods))))


def _rank_timeline(
    phases: list[Span],
    recording: RecordedPass,
    which: int,
    origin: float,
    time_scale: float,
    plan_index: Sequence[int],
    byte_scale: float,
) -> RankTimeline:
    def seconds(moments: Iterable[float]) -> tuple[float, ...]:
        return tuple(round((moment - origin) / time_scale, DECIMALS) for moment in moments)

    spans = _without_waits(phases, recording.waits)
    compute = ComputeTimes(
        tuple(phase for phase, _, _ in spans),
        seconds(start for _, start, _ in spans),
        seconds(stop for _, _, stop in spans),
    )
    shown = [d for d in recording.deals if spans[0][1] <= d.started_seconds < spans[-1][2]]
    deals = DealTimes(
        tuple(one.operation for one in shown),
        seconds(one.started_seconds for one in shown),
        seconds(one.ended_seconds for one in shown),
        tuple(_whole_bytes(one, byte_scale) for one in shown),
    )
    if recording.messages is None:
        return RankTimeline(compute, None)
    mine = sorted(
        (one for one in recording.messages if one.iteration == which),
        key=lambda one: (one.started_seconds, one.message),
    )
    messages = MessageTimes(
        tuple(plan_index[one.message] for one in mine),
        seconds(one.queued_seconds for one in mine),
        seconds(one.started_seconds for one in mine),
        seconds(one.ended_seconds for one in mine),
    )
    return RankTimeline(compute, messages, deals if shown else None)


def _whole_bytes(deal: RecordedDeal, byte_scale: float) -> int:
    """Messages with counts of samples are not scaled."""
    return (
        deal.sent_bytes if deal.operation == "all_gather" else round(deal.sent_bytes / byte_scale)
    )


def _phases(
    starts: Sequence[float], begun: Sequence[float], recording: RecordedPass, which: int
) -> list[Span]:
    """Forward and backward of an iteration's last batch and its update, and the forward pass after
    it. begun: by iteration, the last batch."""
    forwards, backwards = recording.forwards, recording.backwards
    behind = (which + 1) * len(forwards) // len(backwards)
    forward_ended = forwards[behind - 1]
    found: list[Span] = [
        ("forward", begun[which], forward_ended),
        ("backward", forward_ended, backwards[which]),
        ("update", backwards[which], starts[which + 1]),
    ]
    if behind < len(forwards):
        found.append(("forward", starts[which + 1], forwards[behind]))
    return found


def _without_waits(phases: list[Span], waits: Sequence[tuple[float, float]]) -> list[Span]:
    """The same time line with its waits as spans of their own."""
    found: list[Span] = []
    for phase, start, stop in phases:
        now = start
        for begun, ended in waits:
            if ended <= now or begun >= stop:
                continue
            if begun > now:
                found.append((phase, now, begun))
            found.append(("wait", max(begun, now), min(ended, stop)))
            now = min(ended, stop)
        if stop > now:
            found.append((phase, now, stop))
    return found
