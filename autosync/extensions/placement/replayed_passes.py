"""The passes of a replay whose modules are placed.

Operations take this rank's share of them, and at the borders of modules as many bytes travel as
their samples and gradients have. A replay has no samples: what it deals are bytes without a
meaning, by the same collectives as placed modules', in the same order on every rank.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.extensions.placement.document import PlacedModules
from autosync.extensions.placement.module_borders import Deal, borders_of, deals_of, moved_shares
from autosync.extensions.placement.row_exchange import RowExchange, RowRoute
from autosync.profiling import reach_variables

F64 = NDArray[np.float64]


class Passed(Protocol):
    """Operations that run one after another: `replay_compute.Stretch`."""

    @property
    def operations(self) -> tuple[int, ...]: ...

    @property
    def backward(self) -> bool: ...


class EmulatedDevice(Protocol):
    """`replay_compute.WaitedCompute`."""

    def start(self) -> None: ...

    def wait(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class RoutedDeal:
    """deal: of the graph. route: bytes that this rank sends to each rank, and receives."""

    deal: Deal
    route: RowRoute


class PlacedPasses:
    """A `replay_compute.Division`. exchange: between the ranks, of the replicas' shares.
    byte_scale: deals carry as small a part of their bytes as messages do."""

    def __init__(
        self, modules: PlacedModules, exchange: RowExchange, domain: Domain, byte_scale: float
    ) -> None:
        self._profile = domain.profile
        self._byte_scale = byte_scale
        self._exchange = exchange
        self._factors: dict[int, float] = {}
        self._edges: dict[tuple[int, bool, bool], list[RoutedDeal]] = {}
        shares = np.array(exchange.shares)
        trained = reach_variables(domain.graph)
        for placed in modules:
            own = np.zeros(domain.world_size)
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

    def run(self, stretch: Passed, compute: EmulatedDevice) -> None:
        """The stretch, and what is dealt before, within and behind it."""
        waiting: list[int] = []

        def deal(deals: list[RoutedDeal]) -> None:
            nonlocal waiting
            self._compute(waiting, stretch.backward, compute)
            self._deal(deals)
            compute.start()  # the device was idle: what it computes next begins now
            waiting = []

        for operation in stretch.operations:
            if before := self._edges.get((operation, stretch.backward, False)):
                deal(before)
            waiting.append(operation)
            if behind := self._edges.get((operation, stretch.backward, True)):
                deal(behind)
        self._compute(waiting, stretch.backward, compute)

    def _router(self, source: F64, target: F64, rank: int) -> Callable[[int], RowRoute]:
        moved = moved_shares(source, target) * len(source) * self._byte_scale

        def route(size_bytes: int) -> RowRoute:
            counts = np.rint(moved * size_bytes).astype(np.int64)
            return RowRoute(tuple(counts[rank].tolist()), tuple(counts[:, rank].tolist()))

        return route

    def _compute(self, operations: Sequence[int], backward: bool, compute: EmulatedDevice) -> None:
        """Seconds are those of an even share; `wait` takes them times the replica's batch."""
        if not operations:
            return
        seconds = self._profile.backward_seconds if backward else self._profile.forward_seconds
        compute.wait(sum(seconds[index] * self._factors.get(index, 1.0) for index in operations))

    def _deal(self, deals: Sequence[RoutedDeal]) -> None:
        """Collectives."""
        for each in deals:
            if each.deal.counted:
                self._exchange.gather([0, 0])
            given = torch.empty(sum(each.route.sent), dtype=torch.uint8)
            self._exchange.move(given, each.route)
