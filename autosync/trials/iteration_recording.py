"""From what the ranks of a trial noted to the measured timeline of one iteration."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.trials.measured_timeline import (
    ComputeTimes,
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
    """One rank's notes, on `time.monotonic()`.

    forwards, backwards: when each iteration's forward and backward pass ended.
    """

    trace: ExecutionTrace = field(default_factory=ExecutionTrace)
    forwards: list[float] = field(default_factory=list)
    backwards: list[float] = field(default_factory=list)

    def keep(
        self, forwards: Sequence[float], backwards: Sequence[float], in_host_memory: bool
    ) -> None:
        """What was seen of the passes. A GPU is asked for work ahead of time: when the script's
        thread waited is no span of the GPU's time line."""
        self.forwards, self.backwards = list(forwards), list(backwards)
        if not in_host_memory:
            self.trace.waits.clear()

    def as_data(self, engine: str, warmup: int) -> dict[str, Any]:
        """Plain data of the measured iterations. engine: of the plan; see `Plan`."""
        messages = [
            (e.iteration, e.message, e.queued_seconds, e.start_seconds, e.end_seconds)
            for e in self.trace.events
            if e.takes_part and e.iteration >= warmup
        ]
        return {
            "forwards": self.forwards,
            "backwards": self.backwards,
            "waits": self.trace.waits,
            "messages": None if engine == "ddp" else messages,
        }


def measured_timeline(
    answers: Sequence[dict[str, Any]],
    hosts: Sequence[str],
    warmup: int,
    time_scale: float,
    kept: Sequence[int],
) -> MeasuredTimeline:
    """The timeline of the usual one among a pass's measured iterations.

    answers: of the ranks, in rank order: `starts` of all forward passes and one instant after the
        last iteration, and the `recording` of each. hosts: of the ranks; one clock each.
    kept: the plan's index of every message that was shipped.
    """
    starts = np.array([answer["starts"] for answer in answers])
    latest = starts.max(axis=0)
    which = _usual_iteration(latest, warmup)
    by_host = {
        host: max(float(starts[rank][which]) for rank, of in enumerate(hosts) if of == host)
        for host in set(hosts)
    }
    return MeasuredTimeline(
        step_seconds=float(latest[which + 1] - latest[which]) / time_scale,
        clock="shared" if len(by_host) == 1 else "by host",
        ranks=tuple(
            _rank_timeline(answer, which, by_host[host], time_scale, kept)
            for answer, host in zip(answers, hosts, strict=True)
        ),
    )


def _usual_iteration(starts: NDArray[np.float64], warmup: int) -> int:
    """The measured iteration whose period is nearest to the median; not the last of several,
    which no forward pass follows."""
    periods = np.diff(starts)[warmup:]
    candidates = periods[:-1] if len(periods) > 1 else periods
    return warmup + int(np.argmin(abs(candidates - np.median(periods))))


def _rank_timeline(
    answer: dict[str, Any], which: int, zero: float, time_scale: float, kept: Sequence[int]
) -> RankTimeline:
    recording = answer["recording"]

    def seconds(moments: Iterable[float]) -> tuple[float, ...]:
        return tuple(round((moment - zero) / time_scale, DECIMALS) for moment in moments)

    spans = _without_waits(_phases(answer["starts"], recording, which), recording["waits"])
    compute = ComputeTimes(
        tuple(phase for phase, _, _ in spans),
        seconds(start for _, start, _ in spans),
        seconds(stop for _, _, stop in spans),
    )
    if recording["messages"] is None:
        return RankTimeline(compute, None)
    mine = sorted((m for m in recording["messages"] if m[0] == which), key=lambda m: (m[3], m[1]))
    messages = MessageTimes(
        tuple(kept[message[1]] for message in mine),
        *(seconds(message[column] for message in mine) for column in (2, 3, 4)),
    )
    return RankTimeline(compute, messages)


def _phases(starts: Sequence[float], recording: dict[str, Any], which: int) -> list[Span]:
    """Forward, backward and update of an iteration, and the forward pass after it."""
    forwards, backwards = recording["forwards"], recording["backwards"]
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
