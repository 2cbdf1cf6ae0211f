"""Where the seconds of iterations go, from the traces of all ranks.

A collective moves no bytes before the last of its ranks has issued it: until then, ranks wait for
that one. Time in which a rank computes hides both; the rest of the iteration is exposed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autosync.diagnosis.rank_trace import (
    F64,
    RankTrace,
    TracedCollective,
    intersection,
    union,
    without,
)
from autosync.errors import InvalidInput

EXPLAINS = 0.5
"""Of a rank's lateness: what takes it longer by so much is named as the cause."""

LEAST_LATE_SHARE = 0.02
"""Of an iteration: a rank that is later than the others by less is not named."""


@dataclass(frozen=True, slots=True)
class RankSeconds:
    """Mean seconds of one rank's iterations, which are the sum of the parts from `compute` on.

    transfer: in which collectives that all ranks had issued were on their way, and nothing was
    computed. waiting: the same, of collectives that another rank had not issued yet. input: in
    which a batch was fetched and nothing else went on. python: the rest, mostly Python and
    launches. late: how much later than the median of the others it issues a collective, on average.
    in_flight: in which a collective that all ranks had issued was on its way, computing or not.
    """

    rank: int
    host: str
    iteration: float
    compute: float
    transfer: float
    waiting: float
    input: float
    python: float
    late: float
    in_flight: float


@dataclass(frozen=True, slots=True)
class CollectiveSeconds:
    """One collective of an iteration, mean over iterations and ranks. place: its number in the
    iteration. issued: since the iteration began. waiting: until the last rank has issued it.
    transfer: from then to its end. exposed: of both, beside which nothing is computed. bus_bytes:
    that a rank sends in a ring; 0 where its size is not traced. parameters: whose gradients it
    sums, where that is known."""

    place: int
    operation: str
    size_bytes: int
    issued: float
    waiting: float
    transfer: float
    exposed: float
    bus_bytes: float
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SlowestRank:
    """late: by so many seconds after the median of the others, on average. why: `compute`,
    `input` or `host or link`."""

    rank: int
    host: str
    late: float
    why: str


@dataclass(frozen=True, slots=True)
class Breakdown:
    """ranks: by number. collectives: of an iteration, where all ranks and iterations have the same;
    else empty. slowest: None where no rank is late by `LEAST_LATE_SHARE`. on_device: whether a
    GPU's kernels were traced. is_matched: whether all ranks issued the same operations; else
    waiting counts as transfer, and no rank is late."""

    ranks: tuple[RankSeconds, ...]
    collectives: tuple[CollectiveSeconds, ...]
    slowest: SlowestRank | None
    iterations: int
    on_device: bool
    backend: str
    is_matched: bool = True

    @property
    def iteration_seconds(self) -> float:
        return self.mean("iteration")

    def mean(self, part: str) -> float:
        """Of a part of `RankSeconds`, over ranks."""
        return float(np.mean([getattr(rank, part) for rank in self.ranks]))

    @property
    def bus_bytes(self) -> float:
        """That a rank sends an iteration, as rings do; 0 where sizes are not traced."""
        return sum(each.bus_bytes for each in self.collectives)

    @property
    def bus_bytes_per_second(self) -> float | None:
        """While collectives that all ranks have issued are on their way; None where it is not
        known."""
        seconds = self.mean("in_flight")
        return self.bus_bytes / seconds if seconds and self.bus_bytes else None


def break_down(traces: Sequence[RankTrace]) -> Breakdown:
    """What the traces of all ranks say of their iterations.

    Raises:
        InvalidInput: a rank is there twice, ranks have other iterations than each other, or no rank
            does anything but send.
    """
    ordered = sorted(traces, key=lambda each: each.rank)
    _check_ranks(ordered)
    aligned = _aligned(ordered)
    matched = _matched(aligned)
    lateness = _lateness(matched, len(aligned))
    ranks = tuple(
        _rank_seconds(trace, [each[place] for each in matched or ()], last, late)
        for place, (trace, late) in enumerate(zip(aligned, lateness, strict=True))
        for last in [[max(one.issued_seconds for one in each) for each in matched or ()]]
    )
    if not any(each.compute or each.input or each.python for each in ranks):
        raise InvalidInput(
            "within the marked iterations, the traces have nothing but messages.",
            thing="traces",
            value=[each.rank for each in ranks],
            remedy="Record iterations of a training job from their beginning to their end.",
        )
    return Breakdown(
        ranks,
        _collective_seconds(aligned, matched),
        _slowest(ranks),
        len(aligned[0].steps),
        any(trace.on_device for trace in aligned),
        next((trace.backend for trace in aligned if trace.backend), ""),
        matched is not None,
    )


Matched = list[tuple[TracedCollective, ...]]
"""Collectives of the profiled iterations, by rank, in the order of issue."""


def _check_ranks(traces: Sequence[RankTrace]) -> None:
    of_rank = Counter(each.rank for each in traces)
    twice = [rank for rank, count in of_rank.items() if count > 1]
    if twice:
        raise InvalidInput(
            f"rank {twice[0]} has {of_rank[twice[0]]} traces.",
            thing="traces",
            value=twice[0],
            remedy="Give one trace a rank, all of the same iterations.",
        )
    counts = {each.rank: len(each.steps) for each in traces}
    if len(set(counts.values())) > 1:
        raise InvalidInput(
            f"ranks have traced different numbers of iterations: {counts}.",
            thing="traces",
            value=counts,
            remedy="Profile the same steps on every rank, with one schedule.",
        )
    first = traces[0]
    for other in traces:
        for mine, its in zip(first.step_names, other.step_names, strict=True):
            if mine != its:
                raise InvalidInput(
                    f"ranks have traced different iterations: rank {first.rank} has {mine}, rank "
                    f"{other.rank} has {its}.",
                    thing="traces",
                    value=its,
                    remedy="Give traces of the same cycle of the profiler's schedule.",
                )


def _aligned(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """With the clocks of other hosts set by where collectives end, which all ranks reach nearly at
    once; ranks of one host share a clock. A rank whose trace names no host may be of any."""
    matched = _matched(traces)
    hosts = [trace.host or f"rank {trace.rank}" for trace in traces]
    if not matched or len(set(hosts)) < 2:
        return list(traces)
    ends = np.array([[one.end_seconds for one in each] for each in matched])
    offset = np.median(ends - ends[:, :1], axis=0)
    of_host = {host: float(np.median(offset[[h == host for h in hosts]])) for host in hosts}
    return [_earlier(trace, of_host[host]) for trace, host in zip(traces, hosts, strict=True)]


def _earlier(trace: RankTrace, seconds: float) -> RankTrace:
    moved = tuple(
        replace(
            each,
            issued_seconds=each.issued_seconds - seconds,
            end_seconds=each.end_seconds - seconds,
        )
        for each in trace.collectives
    )
    return replace(
        trace,
        steps=trace.steps - seconds,
        compute=trace.compute - seconds,
        input=trace.input - seconds,
        collectives=moved,
    )


def _within_steps(trace: RankTrace) -> list[TracedCollective]:
    begin, end = trace.steps[0, 0], trace.steps[-1, 1]
    return [each for each in trace.collectives if begin <= each.issued_seconds < end]


def _matched(traces: Sequence[RankTrace]) -> Matched | None:
    """None where ranks have issued different operations (groups of some ranks, say). A kernel that
    the last step launches may begin after its mark: all ranks take as many as the one that has most
    within its marks."""
    most = max(len(_within_steps(trace)) for trace in traces)
    issued = [
        [each for each in trace.collectives if each.issued_seconds >= trace.steps[0, 0]][:most]
        for trace in traces
    ]
    if len({tuple(each.operation for each in own) for own in issued}) != 1:
        return None
    return list(zip(*issued, strict=True))


def _lateness(matched: Matched | None, ranks: int) -> list[float]:
    if not matched or ranks < 2:
        return [0.0] * ranks
    issued = np.array([[one.issued_seconds for one in each] for each in matched])
    return [
        float((issued[:, rank] - np.median(np.delete(issued, rank, axis=1), axis=1)).mean())
        for rank in range(ranks)
    ]


def _rank_seconds(
    trace: RankTrace, own: Sequence[TracedCollective], last: Sequence[float], late: float
) -> RankSeconds:
    """last: when the last rank has issued each of `own`; both empty where ranks do not match, whose
    collectives then count as transfers."""
    steps = union([tuple(step) for step in trace.steps.tolist()])
    compute = intersection(trace.compute, steps)
    pairs = (
        zip(own, last, strict=True)
        if own
        else ((each, each.issued_seconds) for each in _within_steps(trace))
    )
    waits, moves = [], []
    for each, ready in pairs:
        waits.append((each.issued_seconds, min(max(ready, each.issued_seconds), each.end_seconds)))
        moves.append((waits[-1][1], each.end_seconds))
    exposed = without(steps, compute)
    transfer = intersection(exposed, union(moves))
    rest = without(exposed, transfer)
    waiting = intersection(rest, union(waits))
    rest = without(rest, waiting)
    loading = intersection(rest, trace.input)
    count = len(trace.steps)
    return RankSeconds(
        trace.rank,
        trace.host,
        iteration=_seconds(steps) / count,
        compute=_seconds(compute) / count,
        transfer=_seconds(transfer) / count,
        waiting=_seconds(waiting) / count,
        input=_seconds(loading) / count,
        python=_seconds(without(rest, loading)) / count,
        late=late,
        in_flight=_seconds(intersection(union(moves), steps)) / count,
    )


def _seconds(intervals: F64) -> float:
    return float(np.diff(intervals, axis=1).sum())


def _collective_seconds(
    traces: Sequence[RankTrace], matched: Matched | None
) -> tuple[CollectiveSeconds, ...]:
    """Empty where iterations issue other collectives than each other."""
    if not matched:
        return ()
    begins = traces[0].steps[:, 0]
    step = np.searchsorted(begins, [each[0].issued_seconds for each in matched], "right") - 1
    members = [np.flatnonzero(step == number) for number in range(len(begins))]
    issued = [tuple(matched[i][0].operation for i in own) for own in members]
    if len(set(issued)) != 1:
        return ()
    found = []
    for place in range(len(issued[0])):
        same = [(number, matched[own[place]]) for number, own in enumerate(members)]
        found.append(_mean_collective(traces, place, same))
    return tuple(found)


def _mean_collective(
    traces: Sequence[RankTrace],
    place: int,
    same: Sequence[tuple[int, tuple[TracedCollective, ...]]],
) -> CollectiveSeconds:
    issued, waiting, transfer, exposed = [], [], [], []
    for number, each in same:
        last = max(one.issued_seconds for one in each)
        for trace, one in zip(traces, each, strict=True):
            issued.append(one.issued_seconds - trace.steps[number, 0])
            waiting.append(max(0.0, min(last, one.end_seconds) - one.issued_seconds))
            transfer.append(max(0.0, one.end_seconds - max(last, one.issued_seconds)))
            flight = np.array([[one.issued_seconds, one.end_seconds]])
            exposed.append(_seconds(without(flight, trace.compute)))
    first = same[0][1][0]
    ranks = first.group_size or max(len(traces), *(each.world_size for each in traces))
    size = first.size_bytes or 0
    return CollectiveSeconds(
        place,
        first.operation,
        size,
        issued=float(np.mean(issued)),
        waiting=float(np.mean(waiting)),
        transfer=float(np.mean(transfer)),
        exposed=float(np.mean(exposed)),
        bus_bytes=size * BUS_SHARE.get(first.operation, 1.0) * (1 - 1 / ranks),
    )


def with_parameters(
    collectives: Sequence[CollectiveSeconds],
    bucket_bytes: Sequence[int],
    bucket_parameters: Sequence[tuple[str, ...]],
) -> tuple[CollectiveSeconds, ...]:
    """With the names of parameters in DDP's all-reduces, which come in the order of its buckets,
    once a pass. Those of other sizes are the script's own."""
    if not bucket_bytes or len(bucket_bytes) != len(bucket_parameters):
        return tuple(collectives)
    found, number = [], 0
    for each in collectives:
        bucket = number % len(bucket_bytes)
        if each.operation == "all_reduce" and each.size_bytes == bucket_bytes[bucket]:
            found.append(replace(each, parameters=bucket_parameters[bucket]))
            number += 1
        else:
            found.append(each)
    return tuple(found)


BUS_SHARE = {"all_reduce": 2.0}
"""Of (n - 1) / n times the bytes, that a rank sends in a ring of n; 1 for other operations."""


def _slowest(ranks: Sequence[RankSeconds]) -> SlowestRank | None:
    if len(ranks) < 2:
        return None
    last = max(ranks, key=lambda each: each.late)
    if last.late < LEAST_LATE_SHARE * last.iteration:
        return None
    others = [each for each in ranks if each is not last]
    compute = float(np.median([each.compute for each in others]))
    fetching = float(np.median([each.input for each in others]))
    excess = {"compute": last.compute - compute, "input": last.input - fetching}
    cause = max(excess, key=lambda part: excess[part])
    why = cause if excess[cause] > EXPLAINS * last.late else "host or link"
    return SlowestRank(last.rank, last.host, last.late, why)
