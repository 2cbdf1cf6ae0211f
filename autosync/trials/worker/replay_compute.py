"""What stands for a model's compute in a replay: sleeps of the profiled durations, here, or kernels
of the model's shapes (`kernels`).

Where ranks divide the model between them, an extension runs the stretches (`Division`): it computes
this rank's part of each operation, and exchanges as many bytes as samples and gradients have.
"""

import ctypes
import time
from dataclasses import dataclass
from typing import Protocol

HIDDEN_SECONDS = 2e-4
"""Host work between two operations that a device's queue hides; longer gaps are stalls."""

TIMER_LATENESS_SECONDS = 3e-5
"""How late a sleep wakes with a timer slack of 1 ns (median on a quiet two-core machine)."""

PR_SET_TIMERSLACK = 29


@dataclass(frozen=True, slots=True)
class Stretch:
    """Operations that run one after another with nothing to synchronize in between.

    seconds: profiled, at nominal speed and an even share. operations: indices into the graph, in
    the order in which they run. backward: whether their backward passes run, not the forward ones.
    """

    seconds: float
    operations: tuple[int, ...] = ()
    backward: bool = False


class ReplayCompute:
    """Emulates the compute of one rank's device."""

    def set_batch_factor(self, factor: float) -> None:
        """From now on this rank computes `factor` times the batch of a replica at an even share;
        with 0 it takes no time."""
        raise NotImplementedError

    def run(self, stretch: Stretch) -> None:
        """The stretch is computed; on a GPU, it is asked for on the current stream."""
        raise NotImplementedError

    def set_slowdown(self, factor: float) -> None:
        """From now on emulated compute takes `factor` times longer; kernels take what they take.
        See `TrialRequest.compute_slowdown`."""

    def start(self) -> None:
        """A forward pass begins."""

    def resume(self) -> None:
        """The replay has done work that a model does not do: it does not delay the device."""


class Division(Protocol):
    """How ranks divide a replayed model; an extension's."""

    def run(self, stretch: Stretch, compute: "WaitedCompute") -> None:
        """This rank's part of a stretch. compute: waits as long as operations take."""


class WaitedCompute(ReplayCompute):
    """A device's time line: stretches end at absolute deadlines, so waking late adds nothing up.

    slowness: real seconds of this rank per profiled second (time scale, slow device), at an even
    share. division: runs stretches where ranks divide the model; None where each computes all.
    """

    def __init__(self, slowness: float = 1.0) -> None:
        self.slowness = slowness
        self.division: Division | None = None
        self._slowdown = 1.0
        self._batch_factor = 1.0
        self._deadline = 0.0
        self._left = 0.0

    def set_batch_factor(self, factor: float) -> None:
        self._batch_factor = factor

    def set_slowdown(self, factor: float) -> None:
        self._slowdown = factor

    def start(self) -> None:
        self._deadline = self._left = time.monotonic()

    def run(self, stretch: Stretch) -> None:
        if self.division is None:
            self.wait(stretch.seconds)
        else:
            self.division.run(stretch, self)

    def wait(self, seconds: float) -> None:
        """Until work that starts now and takes so long, at an even share, would be done."""
        now = time.monotonic()
        stalled = now - self._left
        if stalled > HIDDEN_SECONDS:
            self._deadline += stalled
        factor = self.slowness * self._slowdown * self._batch_factor
        self._deadline += seconds * factor
        rest = self._deadline - now - TIMER_LATENESS_SECONDS
        if rest > 0:
            time.sleep(rest)
        self._left = time.monotonic()

    def resume(self) -> None:
        self._left = time.monotonic()


def reduce_timer_slack() -> None:
    """Set the timer slack to 1 ns: sleeps end 30 us late in place of 80."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
