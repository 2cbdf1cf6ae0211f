"""The schedule: who stays, when the others leave and return, and what the device then holds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.errors import BudgetTooSmall
from autosync.extensions.offload.idle_spans import F64, I64, HostLink, IdleSpans, Moments
from autosync.extensions.offload.resident_spans import resident_spans


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
    spans: IdleSpans, moments: Moments, budget_bytes: float, link: HostLink
) -> SwapSchedule:
    """What the budget has room for stays; the rest leaves and returns behind compute, as far as
    the link and the room left for it allow.

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
    room = _Transfers(spans, moments.starts(), held, budget_bytes, link)
    fetch = room.fetch_moments(np.flatnonzero(~kept))
    release = room.release_moments(np.flatnonzero(copied), fetch)
    return SwapSchedule(spans, kept, copied, release, fetch, held)


def least_budget_bytes(moments: Moments) -> int:
    """The smallest budget with which `make_schedule` finds a schedule."""
    return int(np.ceil(moments.base_bytes.max(initial=0.0)))


@dataclass(slots=True)
class _Transfers:
    """starts f64[M + 1]: see `Moments`. held f64[M]: grows by what is on its way."""

    spans: IdleSpans
    starts: F64
    held: F64
    budget_bytes: float
    link: HostLink

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
            begins = ends - self.link.seconds(self.spans.size_bytes[span])
            found.append(max(int(np.searchsorted(self.starts, begins, "right")) - 1, 0))
        return found[::-1]

    def release_moments(self, copied: I64, fetch: I64) -> I64:
        """`(S,)`: the first moment that begins when its copy has ended, one after the other; sooner
        where there is no room, which compute then waits for."""
        release = self.spans.begin.copy()
        free = 0.0
        for span in copied[np.argsort(self.spans.final[copied], kind="stable")].tolist():
            begin, size = int(self.spans.begin[span]), self.spans.size_bytes[span]
            free = max(free, self.starts[self.spans.final[span]]) + self.link.seconds(size)
            ended = int(np.searchsorted(self.starts, free, "left"))
            last = int(np.clip(ended, begin, fetch[span]))
            full = np.flatnonzero(self.held[begin:last] + size > self.budget_bytes)
            release[span] = begin + int(full[0]) if len(full) else last
            self.held[begin : release[span]] += size
        return release
