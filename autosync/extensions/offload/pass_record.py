"""What a pass did: what it saved and used again when, and how full the device was meanwhile.

GeePS gathers the sequence of operations in the first iteration; so does this. Everything waits in
host memory meanwhile, so that what the device holds is what no schedule can move.
"""

import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from autosync.extensions.offload.device_memory import DeviceMemory
from autosync.extensions.offload.idle_spans import HostLink, IdleSpans, Moments, spans_of
from autosync.extensions.offload.saved_activations import SavedActivation
from autosync.extensions.offload.swapped_values import SwappedValue

Kind = Literal["save", "use", "forward", "value", "end", "update"]
Access = tuple[Kind, int, int]
"""A tensor saved or used again: of the activation at this position, of so many bytes. The begin of
a forward pass. A value about to be read: its position and bytes. The end of a backward pass in
which values were away. Or an update by the optimizer of this number, of so many bytes of state."""

FORWARD: Access = ("forward", 0, 0)
END: Access = ("end", 0, 0)

States = tuple[tuple[int, int], ...]
"""As `SwappedStates.sizes`: of each tensor the number of its optimizer, and its bytes."""


@dataclass(frozen=True, slots=True)
class RecordedPass:
    """accesses: the n-th begins moment n + 1; moment 0 is what runs before them. saved: how many
    activations; in the spans the tensors of the optimizers' state follow them, and then values, of
    which these are the bytes. begin_bytes: on the device where the pass began, without that state.
    """

    accesses: tuple[Access, ...]
    saved: int
    states: States
    values: tuple[int, ...]
    spans: IdleSpans
    moments: Moments
    link: HostLink
    begin_bytes: int


class PassRecord:
    """Filled while a pass runs with everything on the host. The clock stands, and the peak does not
    count, between `pause` and `resume`."""

    def __init__(
        self,
        memory: DeviceMemory,
        states: States = (),
        values: tuple[int, ...] = (),
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._memory = memory
        self._states = states
        self._values = values
        self._clock = clock
        self._accesses: list[Access] = []
        self._seconds: list[float] = []
        self._peaks: list[float] = []
        self._freed: defaultdict[int, list[int]] = defaultdict(list)
        self._held: set[int] = set()
        self._forward = 0
        self._away: dict[int, int] = {}
        self._value_spans: list[tuple[int, int, int]] = []
        self._watches: list[weakref.ref[object]] = []
        self._moved_bytes = 0
        self._moving_seconds = 0.0
        self._begin_bytes = memory.allocated_bytes()
        self.resume()

    def pause(self) -> None:
        """A moment ends."""
        self._memory.synchronize()
        self._seconds.append(self._clock() - self._since)
        self._peaks.append(float(self._memory.take_peak_bytes()))

    def resume(self) -> None:
        """The next one begins."""
        self._memory.synchronize()
        self._memory.take_peak_bytes()
        self._since = self._clock()

    def access(self, kind: Kind, activation: SavedActivation) -> None:
        if kind == "use" and not self._freed[activation.position]:
            self._held.add(activation.position)  # somebody else holds it: it cannot leave
        self._accesses.append((kind, activation.position, activation.size_bytes))

    def begin_forward(self) -> None:
        """The model's forward begins."""
        self._accesses.append(FORWARD)

    def end_backward(self) -> None:
        """A backward pass has ended, in which values were away."""
        self._accesses.append(END)

    def read(self, value: SwappedValue) -> None:
        """A forward or backward pass is about to read it."""
        self._accesses.append(value_access(value))

    def left(self, value: SwappedValue) -> None:
        """Its bytes are given up, before the next moment begins."""
        moment = len(self._accesses) + 1
        self._forward = self._forward or moment
        self._away[value.position] = moment

    def returned(self, value: SwappedValue) -> None:
        """They are here again, from this moment on."""
        self._value_spans.append(
            (value.position, self._away.pop(value.position), len(self._accesses))
        )

    def update(self, number: int) -> None:
        """An optimizer is about to step."""
        self._accesses.append(update_access(number, self._states))

    def watch(self, activation: SavedActivation) -> None:
        """Notice when the bytes that the activation has now on the device are freed."""
        storage = activation.watch()
        position = activation.position

        def freed(_: object) -> None:
            self._freed[position].append(len(self._accesses))

        if storage is not None:
            self._watches.append(weakref.ref(storage, freed))

    def moved(self, size_bytes: int, seconds: float) -> None:
        if size_bytes:
            self._moved_bytes += size_bytes
            self._moving_seconds += seconds

    def finished(self) -> RecordedPass:
        """Where the next pass begins."""
        self.pause()
        self._watches.clear()
        rate = self._moved_bytes / self._moving_seconds if self._moving_seconds else float("inf")
        saved = 1 + max((place for _, place, _ in activation_accesses(self._accesses)), default=-1)
        rows = [
            *self._activation_rows(),
            *self._state_rows(saved),
            *self._value_rows(saved + len(self._states)),
        ]
        return RecordedPass(
            tuple(self._accesses),
            saved,
            self._states,
            self._values,
            spans_of(rows),
            Moments(np.array(self._seconds), np.array(self._peaks)),
            HostLink(rate),
            self._begin_bytes,
        )

    def _activation_rows(self) -> list[tuple[float, int, int, int, int]]:
        moments: defaultdict[int, list[int]] = defaultdict(list)
        sizes: dict[int, int] = {}
        for moment, position, size in activation_accesses(self._accesses):
            moments[position].append(moment)
            sizes[position] = size
        rows = []
        for position, used in moments.items():
            if position in self._held:
                continue
            final = used[0]
            for before, after in pairwise(used):
                freed = [moment for moment in self._freed[position] if before <= moment < after]
                if freed:
                    # idle from the moment in which it was freed: kept, it would fill the rest of it
                    rows.append((float(sizes[position]), position, final, freed[-1], after))
                    final = after
        return rows

    def _state_rows(self, saved: int) -> list[tuple[float, int, int, int, int]]:
        """Each optimizer's is idle from the begin of the pass to its first update."""
        updates: dict[int, int] = {}
        for moment, (kind, number, _) in enumerate(self._accesses, 1):
            if kind == "update":
                updates.setdefault(number, moment)
        return [
            (float(size), saved + place, 0, 0, updates[number])
            for place, (number, size) in enumerate(self._states)
            if number in updates
        ]

    def _value_rows(self, first: int) -> list[tuple[float, int, int, int, int]]:
        """Idle wherever they were away. What they hold is final where the forward pass begins, and
        where no update has brought them back, the next pass does."""
        end = len(self._accesses) + 1
        left = [(position, begin, end) for position, begin in self._away.items()]
        return [
            (float(self._values[position]), first + position, self._forward, begin, until)
            for position, begin, until in [*self._value_spans, *left]
        ]


def activation_accesses(accesses: Sequence[Access]) -> Iterator[tuple[int, int, int]]:
    """Moment, position and bytes of those that save or use an activation."""
    for moment, (kind, position, size) in enumerate(accesses, 1):
        if kind in ("save", "use"):
            yield moment, position, size


def value_access(value: SwappedValue) -> Access:
    return "value", value.position, value.size_bytes


def update_access(number: int, states: States) -> Access:
    return "update", number, sum(size for owner, size in states if owner == number)
