"""Which idle tensors stay on the device: GeePS' placement of data (thesis, algorithm 4).

The paper reserves one pool of twice the peak of what is in use. Here the reserve is of each moment:
what leaves while the first moment without it runs, and what comes while the last one does. As
there, data that is used at the peak is kept first, for that lowers the reserve as well; then, in
place of the paper's any order, whatever is used again soonest, which leaves the longest times to
the transfers.
"""

import numpy as np
from numpy.typing import NDArray

from autosync.swap_schedule.idle_spans import F64, IdleSpans, Moments


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
    """kept bool[S]. held f64[M]: bytes of each moment with what is kept and the reserve."""

    def __init__(self, spans: IdleSpans, moments: Moments, budget_bytes: float) -> None:
        self.spans = spans
        self.budget = budget_bytes
        self.kept = np.zeros(len(spans), dtype=np.bool_)
        self.held: F64 = moments.base_bytes.copy()
        np.add.at(self.held, spans.begin, spans.size_bytes)
        np.add.at(self.held, spans.end - 1, spans.size_bytes)

    def at_peak(self, order: NDArray[np.int64]) -> int:
        """The first in `order` that the reserve at the peak is for; -1 where there is none."""
        if not len(self.spans):
            return -1
        peak = int(self.held.argmax())
        reserved = (self.spans.begin == peak) | (self.spans.end - 1 == peak)
        found = order[(reserved & ~self.kept)[order]]
        return int(found[0]) if len(found) else -1

    def fits(self, span: int) -> bool:
        """Whether keeping it leaves every moment within the budget, or no fuller than it is."""
        after, before = self._with(span)
        return bool((after <= np.maximum(before, self.budget)).all())

    def keep(self, span: int) -> None:
        idle = slice(self.spans.begin[span], self.spans.end[span])
        self.held[idle], _ = self._with(span)
        self.kept[span] = True

    def _with(self, span: int) -> tuple[F64, F64]:
        """Bytes of its moments, when it is kept and now."""
        before = self.held[self.spans.begin[span] : self.spans.end[span]]
        after = before + self.spans.size_bytes[span]
        after[0] -= self.spans.size_bytes[span]
        after[-1] -= self.spans.size_bytes[span]
        return after, before
