"""Which idle tensors stay on the device: GeePS' placement of data (thesis, algorithm 4).

The paper reserves one pool of twice the peak of what is in use. Here the reserve is of each moment:
what leaves while the first moment without it runs, and what comes while the last one does. As
there, data that is used at the peak is kept first, for that lowers the reserve as well; then, in
place of the paper's any order, whatever is used again soonest, which leaves the longest times to
the transfers. What is idle from the begin of the pass on (the optimizer's state) has no reserve: it
would be kept first for it, and it has the longest times of all.
"""

import numpy as np
from numpy.typing import NDArray

from autosync.extensions.offload.idle_spans import F64, IdleSpans, Moments


def resident_spans(spans: IdleSpans, moments: Moments, budget_bytes: float) -> NDArray[np.bool_]:
    """`(S,)`: whether each span is spent on the device, within the budget and its reserve."""
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
