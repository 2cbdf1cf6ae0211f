"""What a rank notes while a trial runs, and the measured timeline of one iteration made of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.trials.commands import RecordedDeal, RecordedMessage, RecordedPass
from autosync.trials.gpus import ClockOrigin, DeviceMoment, on_host_clock
from autosync.trials.measured_timeline import (
    ComputeTimes,
    DealTimes,
    MeasuredTimeline,
    MessageTimes,
    Phase,
    RankTimeline,
)

Span = tuple[Phase, float, float]
DECIMALS = 7
"""Of seconds in the document: a tenth of a microsecond, below what the clock is good for."""


@dataclass(slots=True)
class RankRecording:
    """One rank's notes of one pass.

    trace: receives the messages. forwards, backwards: when each iteration's forward and backward
        pass ended.
    """

    trace: ExecutionTrace = field(default_factory=ExecutionTrace)
    forwards: list[DeviceMoment] = field(default_factory=list)
    backwards: list[DeviceMoment] = field(default_factory=list)

    def read_clock(self, origin: ClockOrigin, device: torch.device) -> None:
        """After the last iteration: all moments on `time.monotonic()`. A GPU is asked for work
        ahead of time: when the script's thread waited is no span of the GPU's time line."""
        self.forwards = list(on_host_clock(origin, self.forwards))
        self.backwards = list(on_host_clock(origin, self.backwards))
        if device.type == "cuda":
            self.trace.waits.clear()

    def recorded(self, starts: Sequence[float], engine: str, warmup: int) -> RecordedPass | None:
        """What was noted of the measured iterations; None where an iteration does not consist of
        one forward pass, one backward pass and one update, in this order.

        starts: of all iterations, and one moment after the last. engine: of the plan; see `Plan`.
        """
        forwards = tuple(one for one in self.forwards if isinstance(one, float))
        backwards = tuple(one for one in self.backwards if isinstance(one, float))
        if {len(forwards), len(backwards)} != {len(starts) - 1}:
            return None
        passes = zip(starts, forwards, backwards, starts[1:], strict=False)
        if not all(start <= forward <= backward <= end for start, forward, backward, end in passes):
            return None
        messages = tuple(
            RecordedMessage(
                e.iteration, e.message, e.queued_seconds, e.start_seconds, e.end_seconds
            )
            for e in self.trace.events
            if e.takes_part and e.iteration >= warmup
        )
        return RecordedPass(
            forwards,
            backwards,
            tuple(self.trace.waits),
            messages if engine == "autosync" else None,
            tuple(
                RecordedDeal(e.operation, e.start_seconds, e.end_seconds, e.sent_bytes)
                for e in self.trace.deals
            ),
        )


def measured_timeline(
    rank_starts: Sequence[Sequence[float]],
    recordings: Sequence[RecordedPass],
    hosts: Sequence[str],
    warmup: int,
    time_scale: float,
    plan_index: Sequence[int],
    byte_scale: float = 1.0,
) -> MeasuredTimeline:
    """The timeline of the usual one among a pass's measured iterations.

    rank_starts: of the ranks, in rank order, the starts of all forward passes and one moment after
        the last iteration. recordings, hosts: of the ranks; each host has a clock of its own.
    plan_index: the index in the requested plan of every message that was shipped. byte_scale: the
        part of the samples' bytes that was dealt.
    """
    starts = np.array(rank_starts)
    latest = latest_starts(rank_starts, hosts)
    which = _usual_iteration(latest, warmup)
    by_host = {
        host: max(float(starts[rank][which]) for rank, of in enumerate(hosts) if of == host)
        for host in set(hosts)
    }
    return MeasuredTimeline(
        step_seconds=float(latest[which + 1] - latest[which]) / time_scale,
        clock="shared" if len(by_host) == 1 else "by host",
        ranks=tuple(
            _rank_timeline(
                mine, recording, which, by_host[host], time_scale, plan_index, byte_scale
            )
            for mine, recording, host in zip(rank_starts, recordings, hosts, strict=True)
        ),
    )


def latest_starts(
    rank_starts: Sequence[Sequence[float]], hosts: Sequence[str]
) -> NDArray[np.float64]:
    """When the last rank has begun each iteration, since the first one began; hosts have clocks of
    their own, which are compared by their first start. Arguments as for `measured_timeline`."""
    starts = np.array(rank_starts)
    on_hosts = [starts[[of == host for of in hosts]].max(axis=0) for host in dict.fromkeys(hosts)]
    found: NDArray[np.float64] = np.max([latest - latest[0] for latest in on_hosts], axis=0)
    return found


def _usual_iteration(starts: NDArray[np.float64], warmup: int) -> int:
    """The measured iteration whose period is nearest to the median; not the last of several,
    which no forward pass follows."""
    periods = np.diff(starts)[warmup:]
    candidates = periods[:-1] if len(periods) > 1 else periods
    return warmup + int(np.argmin(abs(candidates - np.median(periods))))


def _rank_timeline(
    starts: Sequence[float],
    recording: RecordedPass,
    which: int,
    origin: float,
    time_scale: float,
    plan_index: Sequence[int],
    byte_scale: float,
) -> RankTimeline:
    def seconds(moments: Iterable[float]) -> tuple[float, ...]:
        return tuple(round((moment - origin) / time_scale, DECIMALS) for moment in moments)

    spans = _without_waits(_phases(starts, recording, which), recording.waits)
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
    """Counts of samples travel whole."""
    return (
        deal.sent_bytes if deal.operation == "all_gather" else round(deal.sent_bytes / byte_scale)
    )


def _phases(starts: Sequence[float], recording: RecordedPass, which: int) -> list[Span]:
    """Forward, backward and update of an iteration, and the forward pass after it."""
    forwards, backwards = recording.forwards, recording.backwards
    found: list[Span] = [
        ("forward", starts[which], forwards[which]),
        ("backward", forwards[which], backwards[which]),
        ("update", backwards[which], starts[which + 1]),
    ]
    if which + 1 < len(forwards):
        found.append(("forward", starts[which + 1], forwards[which + 1]))
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
