"""A replay's compute where modules are placed: operations take this rank's share of them, and at
the borders of modules as many bytes travel as their samples and gradients have.

A replay has no samples. What it deals are bytes without a meaning, by the collectives that
`runtime.placement` uses, in the same order on every rank.
"""

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
from autosync.trials.worker.replay_compute import ReplayCompute, Stretch

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RoutedDeal:
    """deal: of the graph. route: bytes that this rank sends to each rank, and receives."""

    deal: Deal
    route: RowRoute


class PlacedCompute:
    """A `ReplayCompute` around another, `inner`, and as that one while nothing is placed.

    byte_scale: deals carry as small a part of their bytes as messages do.
    """

    def __init__(self, inner: ReplayCompute, domain: Domain, byte_scale: float) -> None:
        self.inner = inner
        self._domain = domain
        self._byte_scale = byte_scale
        self._exchange: RowExchange | None = None
        self._factors: dict[int, float] = {}
        self._edges: dict[tuple[int, bool, bool], list[RoutedDeal]] = {}

    def set_batch_factor(self, factor: float) -> None:
        self.inner.set_batch_factor(factor)

    def set_swap_slowdown(self, factor: float) -> None:
        self.inner.set_swap_slowdown(factor)

    def start(self) -> None:
        self.inner.start()

    def resume(self) -> None:
        self.inner.resume()

    def run(self, stretch: Stretch) -> None:
        """The stretch, and what is dealt before, within and behind it."""
        if self._exchange is None:
            self.inner.run(stretch)
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
        """Seconds are those of an even share; `inner` takes them times the replica's batch."""
        if not operations:
            return
        profile = self._domain.profile
        seconds = profile.backward_seconds if backward else profile.forward_seconds
        own = sum(seconds[index] * self._factors.get(index, 1.0) for index in operations)
        self.inner.run(Stretch(own, tuple(operations), backward))

    def _deal(self, deals: Sequence[RoutedDeal]) -> None:
        """Collectives. The device stands still meanwhile: what it computes next begins behind."""
        exchange = self._exchange
        assert exchange is not None
        for each in deals:
            if each.deal.counted:
                exchange.gather([0, 0])
            given = torch.empty(sum(each.route.sent), dtype=torch.uint8)
            exchange.move(given, each.route)
        self.inner.start()
