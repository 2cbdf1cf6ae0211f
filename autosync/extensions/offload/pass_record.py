"""What a pass did: what it saved and used again when, and how full the device was meanwhile.

GeePS gathers the sequence of operations in the first iteration; so does this. Everything waits in
host memory meanwhile, so that what the device holds is what no schedule can move.
"""

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from autosync.extensions.offload.arena import Arena
from autosync.extensions.offload.device import GpuMemory
from autosync.extensions.offload.schedule import IdleSpans, Moments, spans_of
from autosync.extensions.offload.swapped_tensors import SavedActivation

Kind = Literal["save", "use", "update"]
Access = tuple[Kind, int, int]
"""A tensor saved or used again: of the activation at this position, of so many bytes. Or an update
by the optimizer of this number, of so many bytes of state."""

States = tuple[tuple[int, int], ...]
"""As `SwappedStates.sizes`: of each tensor the number of its optimizer, and its bytes."""

Key = tuple[Literal["activation", "state"], int]
"""A swapped tensor: its kind, and its place among those of the kind."""


def update_access(number: int, states: States) -> Access:
    return "update", number, sum(size for owner, size in states if owner == number)


@dataclass(frozen=True, slots=True)
class RecordedPass:
    """accesses: the n-th begins moment n + 1; moment 0 is what runs before them. tensors: that the
    spans number. states: that were swapped. begin_bytes: on the device where the pass
    began, without that state."""

    accesses: tuple[Access, ...]
    tensors: tuple[Key, ...]
    states: States
    spans: IdleSpans
    moments: Moments
    bytes_per_second: float
    begin_bytes: int


class PassRecord:
    """Filled while a pass runs with everything on the host. The clock stands, and the peak does not
    count, between `pause` and `resume`."""

    def __init__(
        self,
        memory: Arena | GpuMemory,
        states: States = (),
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._memory = memory
        self._states = states
        self._clock = clock
        self._accesses: list[Access] = []
        self._seconds: list[float] = []
        self._peaks: list[float] = []
        self._final: dict[Key, int] = {}
        self._idle: dict[Key, tuple[int, int]] = {
            ("state", place): (size, 0) for place, (_, size) in enumerate(states)
        }
        self._spans: list[tuple[Key, int, int, int, int]] = []
        self._freed: set[Key] = set()
        self._held: set[Key] = set()
        self._watches: list[weakref.ref[object]] = []
        self._moved_bytes = 0
        self._moving_seconds = 0.0
        self._begin_bytes = memory.allocated_bytes()
        self.resume()

    @property
    def moment(self) -> int:
        return len(self._accesses)

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

    def begin(self, access: Access) -> None:
        """What is accessed is idle no more."""
        self._accesses.append(access)
        kind, number, _ = access
        if kind == "save":
            self._final.setdefault(("activation", number), self.moment)
        elif kind == "use":
            if ("activation", number) not in self._freed:
                self._held.add(("activation", number))  # by somebody else: it cannot leave
            self._used([("activation", number)])
        else:
            owners = enumerate(self._states)
            self._used([("state", place) for place, (owner, _) in owners if owner == number])

    def idle(self, key: Key, size_bytes: int, moment: int) -> None:
        """It is not on the device any more, from this moment on."""
        self._freed.add(key)
        self._idle[key] = size_bytes, moment

    def watch(self, activation: SavedActivation) -> None:
        """Notice when the bytes that the activation has now on the device are freed."""
        storage, size = activation.watch(), activation.size_bytes
        key: Key = "activation", activation.position

        def freed(_: object) -> None:
            # idle from the moment in which it was freed: kept, it would fill the rest of it
            self.idle(key, size, self.moment)

        if storage is not None:
            self._watches.append(weakref.ref(storage, freed))

    def moved(self, size_bytes: int, seconds: float) -> None:
        if size_bytes:
            self._moved_bytes += size_bytes
            self._moving_seconds += seconds

    def timed(self, copy: Callable[[], int]) -> None:
        """copy: returns the bytes that it has copied."""
        begin = self._clock()
        copied = copy()
        self.moved(copied, self._clock() - begin)

    def finished(self) -> RecordedPass:
        """Where the next pass begins."""
        self.pause()
        self._watches.clear()
        rate = self._moved_bytes / self._moving_seconds if self._moving_seconds else float("inf")
        saved = {number for kind, number, _ in self._accesses if kind in ("save", "use")}
        tensors: list[Key] = [("activation", place) for place in range(1 + max(saved, default=-1))]
        tensors += [("state", place) for place in range(len(self._states))]
        number = {key: place for place, key in enumerate(tensors)}
        rows = [
            (float(size), number[key], final, begin, end)
            for key, size, final, begin, end in self._spans
            if key not in self._held
        ]
        return RecordedPass(
            tuple(self._accesses),
            tuple(tensors),
            self._states,
            spans_of(rows),
            Moments(np.array(self._seconds), np.array(self._peaks)),
            rate,
            self._begin_bytes,
        )

    def _used(self, keys: Sequence[Key]) -> None:
        for key in keys:
            if key in self._idle:
                size, begin = self._idle.pop(key)
                self._spans.append((key, size, self._final.get(key, 0), begin, self.moment))
                if key[0] == "activation":  # which may leave again when this use has ended
                    self._final[key] = self.moment
