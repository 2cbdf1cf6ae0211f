"""What stands for a model's compute in a replay: sleeps of the profiled durations, here, or kernels
of the model's shapes (`kernels`).

Where modules are placed, a rank's operations take its share of their time, and at the borders of
modules as many bytes travel as their samples and gradients have. A replay has no samples: it
exchanges meaningless bytes, by the collectives of the placement extension, in the same order on
every rank.
"""

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.extensions.placement.document import PlacedModules
from autosync.extensions.placement.module_borders import Deal, borders_of, deals_of, moved_shares
from autosync.extensions.placement.row_exchange import RowExchange, RowRoute
from autosync.profiling import reach_variables

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

    def set_swap_slowdown(self, factor: float) -> None:
        """From now on compute that sleeps takes `factor` times longer: what a model would wait for
        swapped tensors, of which a replay has none. Kernels are not slowed down."""

    def start(self) -> None:
        """A forward pass begins."""

    def resume(self) -> None:
        """The replay has done work that a model does not do: it does not delay the device."""


class WaitedCompute(ReplayCompute):
    """A device's time line: stretches end at absolute deadlines, so waking late adds nothing up.

    slowness: real seconds of this rank per profiled second (time scale, slow device), at an even
    share.
    """

    def __init__(self, slowness: float = 1.0) -> None:
        self.slowness = slowness
        self._swap_slowdown = 1.0
        self._batch_factor = 1.0
        self._deadline = 0.0
        self._left = 0.0

    def set_batch_factor(self, factor: float) -> None:
        self._batch_factor = factor

    def set_swap_slowdown(self, factor: float) -> None:
        self._swap_slowdown = factor

    def start(self) -> None:
        self._deadline = self._left = time.monotonic()

    def run(self, stretch: Stretch) -> None:
        """Wait until a stretch that starts now would be done."""
        now = time.monotonic()
        stalled = now - self._left
        if stalled > HIDDEN_SECONDS:
            self._deadline += stalled
        factor = self.slowness * self._swap_slowdown * self._batch_factor
        self._deadline += stretch.seconds * factor
        rest = self._deadline - now - TIMER_LATENESS_SECONDS
        if rest > 0:
            time.sleep(rest)
        self._left = time.monotonic()

    def resume(self) -> None:
        self._left = time.monotonic()


def reduce_timer_slack() -> None:
    """Set the timer slack to 1 ns: sleeps end 30 us late in place of 80."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RoutedDeal:
    """deal: of the graph. route: bytes that this rank sends to each rank, and receives."""

    deal: Deal
    route: RowRoute


class PlacedCompute(WaitedCompute):
    """Waits as its base class does while nothing is placed.

    byte_scale: deals carry as small a part of their bytes as messages do.
    """

    def __init__(self, slowness: float, domain: Domain, byte_scale: float) -> None:
        super().__init__(slowness)
        self._domain = domain
        self._byte_scale = byte_scale
        self._exchange: RowExchange | None = None
        self._factors: dict[int, float] = {}
        self._edges: dict[tuple[int, bool, bool], list[RoutedDeal]] = {}

    def run(self, stretch: Stretch) -> None:
        """The stretch, and the exchanges before, within and after it."""
        if self._exchange is None:
            super().run(stretch)
            return
        waiting: list[int] = []
        for operation in stretch.operations:
            if before := self._edges.get((operation, stretch.backward, False)):
                self._compute(waiting, stretch.backward)
                self._deal(before)
                waiting = []
            waiting.append(operation)
            if behind := self._edges.get((operation, stretch.backward, True)):
                self._compute(waiting, stretch.backward)
                self._deal(behind)
                waiting = []
        self._compute(waiting, stretch.backward)

    def place(self, placement: PlacedModules, exchange: RowExchange) -> "PlacedCompute":
        """From now on until `remove`. exchange: between the ranks, of the replicas' shares."""
        domain, world = self._domain, self._domain.world_size
        shares = np.array(exchange.shares)
        trained = reach_variables(domain.graph)
        for placed in placement:
            own = np.zeros(world)
            own[list(placed.ranks)] = placed.shares
            borders = borders_of(domain.graph, placed.module)
            factor = float(own[exchange.rank] / shares[exchange.rank])
            self._factors |= dict.fromkeys(borders.operations, factor)
            inward = self._router(shares, own, exchange.rank)
            outward = self._router(own, shares, exchange.rank)
            for deal in deals_of(domain.graph, borders, trained):
                edge = (deal.operation, deal.is_backward, deal.is_after)
                route = (inward if deal.inward else outward)(deal.size_bytes)
                self._edges.setdefault(edge, []).append(RoutedDeal(deal, route))
        self._exchange = exchange
        return self

    def remove(self) -> None:
        """Every rank computes all operations of its replica again."""
        self._exchange = None
        self._factors.clear()
        self._edges.clear()

    def _router(self, source: F64, target: F64, rank: int) -> Callable[[int], RowRoute]:
        moved = moved_shares(source, target) * len(source) * self._byte_scale

        def route(size_bytes: int) -> RowRoute:
            counts = np.rint(moved * size_bytes).astype(np.int64)
            return RowRoute(tuple(counts[rank].tolist()), tuple(counts[:, rank].tolist()))

        return route

    def _compute(self, operations: Sequence[int], backward: bool) -> None:
        """Seconds are those of an even share; `run` takes them times the replica's batch."""
        if not operations:
            return
        profile = self._domain.profile
        seconds = profile.backward_seconds if backward else profile.forward_seconds
        own = sum(seconds[index] * self._factors.get(index, 1.0) for index in operations)
        super().run(Stretch(own, tuple(operations), backward))

    def _deal(self, deals: Sequence[RoutedDeal]) -> None:
        """Collectives. The device is idle meanwhile: what it computes next begins after them."""
        exchange = self._exchange
        assert exchange is not None
        for each in deals:
            if each.deal.counted:
                exchange.gather([0, 0])
            given = torch.empty(sum(each.route.sent), dtype=torch.uint8)
            exchange.move(given, each.route)
        self.start()
