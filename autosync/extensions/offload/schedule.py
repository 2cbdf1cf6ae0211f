"""The schedule of a training step that swaps, by pure functions: which idle tensors stay on the
device, when the others leave and return, and how long compute waits for that.

A moment is what runs between two points at which something may be moved: an operation of the
forward or backward pass in a graph, the work between two saved tensors in a running job.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.errors import BudgetTooSmall

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

SMALLEST_BYTES = 1 << 16
"""Tensors below this stay: a transfer costs some ten microseconds to start, in which a slot of 16
PCIe 3 lanes carries about twice as much."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Of M moments. seconds f64[M]: of compute alone. base_bytes f64[M]: the most that the device
    holds in each while every idle span is spent elsewhere."""

    seconds: F64
    base_bytes: F64

    def starts(self) -> F64:
        """When each begins, and the end of the last: `(M + 1,)` seconds of compute."""
        return np.concatenate(([0.0], np.cumsum(self.seconds)))


@dataclass(frozen=True, slots=True)
class IdleSpans:
    """Of S spans, in which a tensor is on the device and nobody uses it.

    size_bytes f64[S]. tensor i64[S]: whose content it is; spans of one tensor follow each other.
    final i64[S]: the moment from whose beginning on the tensor can be copied away: its content
    does not change any more. begin, end i64[S]: idle in the moments begin:end, used again in `end`.
    """

    size_bytes: F64
    tensor: I64
    final: I64
    begin: I64
    end: I64

    def __len__(self) -> int:
        return len(self.size_bytes)

    def copied(self, kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """`(S,)`: which of those that are not kept have to be copied to the host: the first of
        each tensor. Later ones find the host's copy still good."""
        away = np.flatnonzero(~kept)
        _, first = np.unique(self.tensor[away], return_index=True)
        copied = np.zeros(len(self), dtype=np.bool_)
        copied[away[first]] = True
        return copied


def by_moment(chosen: NDArray[np.bool_], moments: I64, values: I64) -> defaultdict[int, list[int]]:
    """Of chosen spans, bool[S], the values, i64[S], by their moments, i64[S]."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for moment, value in zip(moments[chosen].tolist(), values[chosen].tolist(), strict=True):
        found[moment].append(value)
    return found


def joined(first: IdleSpans, second: IdleSpans) -> IdleSpans:
    """Of different tensors; those of the second are numbered behind those of the first."""
    behind = 1 + int(first.tensor.max(initial=-1))
    return IdleSpans(
        size_bytes=np.concatenate((first.size_bytes, second.size_bytes)),
        tensor=np.concatenate((first.tensor, behind + second.tensor)),
        final=np.concatenate((first.final, second.final)),
        begin=np.concatenate((first.begin, second.begin)),
        end=np.concatenate((first.end, second.end)),
    )


def spans_of(rows: list[tuple[float, int, int, int, int]]) -> IdleSpans:
    """rows: size, tensor, final, begin and end of each; spans without a moment are left out."""
    real = sorted((row for row in rows if row[3] < row[4]), key=lambda row: (row[1], row[3]))
    columns = np.array(real, dtype=np.float64).reshape(len(real), 5).T
    size, tensor, final, begin, end = columns
    return IdleSpans(size, *(column.astype(np.int64) for column in (tensor, final, begin, end)))


@dataclass(frozen=True, slots=True)
class SwapSchedule:
    """Of S spans and M moments.

    kept, copied bool[S]: spent on the device; copied to the host, from moment `final` on.
    release i64[S]: the moment before whose beginning the copy must have ended and the tensor's
        bytes leave. fetch i64[S]: the moment at whose beginning they are taken again and the
        transfer back begins; it must have ended where the span ends.
    held_bytes f64[M]: the most that the device holds in each moment, however long transfers take.
    """

    spans: IdleSpans
    kept: NDArray[np.bool_]
    copied: NDArray[np.bool_]
    release: I64
    fetch: I64
    held_bytes: F64

    @property
    def peak_bytes(self) -> float:
        return float(self.held_bytes.max(initial=0.0))

    @property
    def moved_bytes(self) -> float:
        """In both directions together."""
        sizes = self.spans.size_bytes
        return float(sizes[self.copied].sum() + sizes[~self.kept].sum())


def make_schedule(
    spans: IdleSpans, moments: Moments, budget_bytes: float, bytes_per_second: float
) -> SwapSchedule:
    """What the budget has room for stays; the rest leaves and returns behind compute, as far as
    the link and the room left for it allow. bytes_per_second: between a device and its host, as
    fast in both directions and in both at once.

    Raises:
        BudgetTooSmall: some moment needs more than the budget with all that is idle elsewhere;
            names the least budget that works.
    """
    least = least_budget_bytes(moments)
    if least > budget_bytes:
        raise BudgetTooSmall(
            f"a budget of {budget_bytes:,.0f} bytes does not hold a training step: with all that "
            f"can wait in host memory out of the way it takes {least:,} bytes.",
            thing="swap.budget_bytes",
            value=budget_bytes,
            remedy=f"Give {least:,} bytes or more, or a smaller batch.",
        )
    kept = resident_spans(spans, moments, budget_bytes)
    copied = spans.copied(kept)
    held = moments.base_bytes.copy()
    for span in np.flatnonzero(kept).tolist():
        held[spans.begin[span] : spans.end[span]] += spans.size_bytes[span]
    transfers = _Transfers(spans, moments.starts(), held, budget_bytes, bytes_per_second)
    fetch = transfers.fetch_moments(np.flatnonzero(~kept))
    release = transfers.release_moments(np.flatnonzero(copied), fetch)
    return SwapSchedule(spans, kept, copied, release, fetch, held)


def least_budget_bytes(moments: Moments) -> int:
    """The smallest budget with which `make_schedule` finds a schedule."""
    return int(np.ceil(moments.base_bytes.max(initial=0.0)))


def resident_spans(spans: IdleSpans, moments: Moments, budget_bytes: float) -> NDArray[np.bool_]:
    """`(S,)`: whether each span is spent on the device, within the budget and its reserve: GeePS'
    placement of data (thesis, algorithm 4).

    The paper reserves one pool of twice the peak of what is in use. Here the reserve is of each
    moment: what leaves in the first moment without it, and what returns in the last one. As in the
    paper, data used at the peak is kept first, which lowers the reserve as well. Then, where the
    paper has no order, data that is used again soonest is kept, which leaves the longest times to
    transfers. What is idle from the begin of the pass on (the optimizer's state) has no reserve: it
    has the longest times of all.
    """
    room = _Room(spans, moments, budget_bytes)
    starts = moments.starts()
    soonest = np.lexsort((-spans.size_bytes, starts[spans.end] - starts[spans.begin]))
    while (candidate := room.at_peak(soonest)) >= 0 and room.fits(candidate):
        room.keep(candidate)
    for span in soonest.tolist():
        if not room.kept[span] and room.fits(span):
            room.keep(span)
    return room.kept


class _Room:
    """kept bool[S]. held, reserve f64[M]: bytes of each moment with what is kept, and beside them
    those of what leaves and comes. reserved f64[S]: what each span adds to two moments of it."""

    def __init__(self, spans: IdleSpans, moments: Moments, budget_bytes: float) -> None:
        self.spans = spans
        self.budget = budget_bytes
        self.kept = np.zeros(len(spans), dtype=np.bool_)
        self.held: F64 = moments.base_bytes.copy()
        self.reserve: F64 = np.zeros_like(self.held)
        self.reserved: F64 = np.where(spans.begin > 0, spans.size_bytes, 0.0)
        np.add.at(self.reserve, spans.begin, self.reserved)
        np.add.at(self.reserve, spans.end - 1, self.reserved)

    def at_peak(self, order: NDArray[np.int64]) -> int:
        """The first in `order` that the reserve at the peak is for; -1 where there is none."""
        needed = self.held + self.reserve
        full = needed == needed.max(initial=0.0)
        is_used = full[self.spans.begin] | full[self.spans.end - 1]
        at_peak = ~self.kept & (self.reserved > 0) & is_used
        found = order[at_peak[order]]
        return int(found[0]) if len(found) else -1

    def fits(self, span: int) -> bool:
        """Whether every moment is within the budget if it is kept; with the reserve, too, or no
        fuller than now."""
        idle = slice(self.spans.begin[span], self.spans.end[span])
        held, reserve = self._with(span)
        most = np.maximum(self.held[idle] + self.reserve[idle], self.budget)
        return bool((held <= self.budget).all() and (held + reserve <= most).all())

    def keep(self, span: int) -> None:
        idle = slice(self.spans.begin[span], self.spans.end[span])
        self.held[idle], self.reserve[idle] = self._with(span)
        self.kept[span] = True

    def _with(self, span: int) -> tuple[F64, F64]:
        """Bytes held and reserved in its moments, if it is kept."""
        idle, size = slice(self.spans.begin[span], self.spans.end[span]), self.spans.size_bytes
        reserve = self.reserve[idle].copy()
        reserve[0] -= self.reserved[span]
        reserve[-1] -= self.reserved[span]
        return self.held[idle] + size[span], reserve


@dataclass(slots=True)
class _Transfers:
    """starts f64[M + 1]: see `Moments`. held f64[M]: grows by what is on its way."""

    spans: IdleSpans
    starts: F64
    held: F64
    budget_bytes: float
    bytes_per_second: float

    def fetch_moments(self, away: I64) -> I64:
        """`(S,)`: as late as the link can still bring all of them in time, later where there is no
        room, and in the order in which they are used."""
        fetch = self.spans.end.copy()
        order = away[np.lexsort((self.spans.begin[away], self.spans.end[away]))]
        wanted = self._latest_moments(order)
        earliest = 0
        for span, moment in zip(order.tolist(), wanted, strict=True):
            end, size = int(self.spans.end[span]), self.spans.size_bytes[span]
            first = max(earliest, moment, int(self.spans.begin[span]))
            full = np.flatnonzero(self.held[first:end] + size > self.budget_bytes)
            fetch[span] = earliest = min(first + int(full[-1]) + 1 if len(full) else first, end)
            self.held[fetch[span] : end] += size
        return fetch

    def _latest_moments(self, order: I64) -> list[int]:
        """The moment in which each transfer has to begin for all to be there in time, one after
        the other, if memory were no matter."""
        found: list[int] = []
        begins = np.inf
        for span in reversed(order.tolist()):
            ends = min(begins, self.starts[self.spans.end[span]])
            begins = ends - self.spans.size_bytes[span] / self.bytes_per_second
            found.append(max(int(np.searchsorted(self.starts, begins, "right")) - 1, 0))
        return found[::-1]

    def release_moments(self, copied: I64, fetch: I64) -> I64:
        """`(S,)`: the first moment that begins when its copy has ended, one after the other; sooner
        where there is no room, which compute then waits for."""
        release = self.spans.begin.copy()
        free = 0.0
        for span in copied[np.argsort(self.spans.final[copied], kind="stable")].tolist():
            begin, size = int(self.spans.begin[span]), self.spans.size_bytes[span]
            free = max(free, self.starts[self.spans.final[span]]) + size / self.bytes_per_second
            ended = int(np.searchsorted(self.starts, free, "left"))
            last = int(np.clip(ended, begin, fetch[span]))
            full = np.flatnonzero(self.held[begin:last] + size > self.budget_bytes)
            release[span] = begin + int(full[0]) if len(full) else last
            self.held[begin : release[span]] += size
        return release


def stall_seconds(schedule: SwapSchedule, seconds: F64, bytes_per_second: float) -> float:
    """How long compute waits for transfers in one pass.

    seconds f64[M]: of compute, moment by moment. Each direction carries one tensor at a time, in
    the order of its moments; a tensor returns when it has left.
    """
    spans = schedule.spans
    numbers = np.arange(len(spans))
    copies, releases, fetches, uses = (
        by_moment(schedule.copied, spans.final, numbers),
        by_moment(schedule.copied, schedule.release, numbers),
        by_moment(~schedule.kept, schedule.fetch, numbers),
        by_moment(~schedule.kept, spans.end, numbers),
    )
    gone, here = [0.0] * len(spans), [0.0] * len(spans)
    of_tensor: dict[int, float] = {}
    transfer_seconds = (spans.size_bytes / bytes_per_second).tolist()
    now = out_free = in_free = stalled = 0.0
    for moment, computing in enumerate(seconds.tolist()):
        for span in copies[moment]:
            out_free = max(now, out_free) + transfer_seconds[span]
            gone[span] = of_tensor[int(spans.tensor[span])] = out_free
        for span in releases[moment]:
            stalled += max(gone[span] - now, 0.0)
            now = max(now, gone[span])
        for span in fetches[moment]:
            begin = max(now, in_free, of_tensor[int(spans.tensor[span])])
            here[span] = in_free = begin + transfer_seconds[span]
        for span in uses[moment]:
            stalled += max(here[span] - now, 0.0)
            now = max(now, here[span])
        now += computing
    return stalled
