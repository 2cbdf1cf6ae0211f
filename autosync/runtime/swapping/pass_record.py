"""What a pass did: whom it saved and used again when, and how full the device was meanwhile.

GeePS gathers the sequence of operations in the first iteration; so does this. Everything waits in
host memory meanwhile, so that what the device holds is what no schedule can move.
"""

import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from autosync.runtime.swapping.device_memory import DeviceMemory
from autosync.runtime.swapping.saved_activations import SavedActivation
from autosync.swap_schedule.idle_spans import HostLink, IdleSpans, Moments, spans_of

Kind = Literal["save", "use", "update"]
Access = tuple[Kind, int, int]
"""A tensor saved or used again: of the activation at this position, of so many bytes. Or an update
by the optimizer of this number, of so many bytes of state."""

States = tuple[tuple[int, int], ...]
"""As `SwappedStates.sizes`: of each tensor the number of its optimizer, and its bytes."""


@dataclass(frozen=True, slots=True)
class RecordedPass:
    """accesses: the n-th begins moment n + 1; moment 0 is what runs before them. saved: how many
    activations; in the spans the tensors of the optimizers' state follow them. begin_bytes: on the
    device where the pass began, without that state."""

    accesses: tuple[Access, ...]
    saved: int
    states: States
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
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._memory = memory
        self._states = states
        self._clock = clock
        self._accesses: list[Access] = []
        self._seconds: list[float] = []
        self._peaks: list[float] = []
        self._freed: defaultdict[int, list[int]] = defaultdict(list)
        self._held: set[int] = set()
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
        saved = 1 + max(
            (place for kind, place, _ in self._accesses if kind != "update"), default=-1
        )
        rows = [*self._activation_rows(), *self._state_rows(saved)]
        return RecordedPass(
            tuple(self._accesses),
            saved,
            self._states,
            spans_of(rows),
            Moments(np.array(self._seconds), np.array(self._peaks)),
            HostLink(rate),
            self._begin_bytes,
        )

    def _activation_rows(self) -> list[tuple[float, int, int, int, int]]:
        moments: defaultdict[int, list[int]] = defaultdict(list)
        sizes: dict[int, int] = {}
        for number, (kind, position, size) in enumerate(self._accesses):
            if kind != "update":
                moments[position].append(number + 1)
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


def update_access(number: int, states: States) -> Access:
    return "update", number, sum(size for owner, size in states if owner == number)
