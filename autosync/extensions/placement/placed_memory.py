"""Which variables and which activations a rank holds where modules are placed."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.extensions.placement.module_borders import data_bytes
from autosync.extensions.placement.placed_module import Placement
from autosync.profiling import reach_variables
from autosync.simulator.memory.live_tensors import storages_of

F64 = NDArray[np.float64]

OF_MODULES = 2
"""First row of an activation curve that holds a placed module's activations."""


@dataclass(frozen=True, slots=True)
class PlacedHoldings:
    """rows: of the activation curve, by operation: a placed module's activations with batch
    dimension have one of their own. held bool[world, V]: whether a rank holds a variable.
    shares f64[world, modules]: of the batch that each rank computes in each module, over the even
    one. dealt_bytes f64[world]: what a rank keeps until backward beside what the curve counts,
    since a deal writes its samples to a new tensor, those that stay on their rank as well.
    """

    rows: tuple[int, ...]
    held: NDArray[np.bool_]
    shares: F64
    dealt_bytes: F64


def placed_holdings(
    domain: Domain, placement: Placement, replicas: F64, on_gpu: bool
) -> PlacedHoldings:
    """replicas: each rank's share of the batch over the even one, `(world,)`. on_gpu: as
    `storages_of` has it."""
    graph, world = domain.graph, domain.world_size
    storages = storages_of(graph, reach_variables(graph), on_gpu)
    keepers: list[set[int]] = [set() for _ in graph.operations]
    for index, kept in enumerate(storages.keeps):
        for root in kept:
            keepers[root].add(index)
    rows = [int(operation.has_batch_dimension) for operation in graph.operations]
    held = np.ones((world, len(graph.variables)), dtype=np.bool_)
    shares = np.zeros((world, len(placement)))
    dealt = np.zeros(world)
    for number, placed in enumerate(placement):
        borders = domain.borders.of(placed.module)
        for index in borders.operations:
            if graph.operations[index].has_batch_dimension:
                rows[index] = OF_MODULES + number
        absent = [rank for rank in range(world) if rank not in placed.ranks]
        held[np.ix_(absent, borders.variables)] = False
        shares[list(placed.ranks), number] = np.multiply(placed.shares, world)
        inside, own = set(borders.operations), shares[:, number]
        for source in sorted({source for source, _ in borders.entering}):
            size = graph.operations[source].output_bytes
            keeping = keepers[storages.root[source]]
            dealt += _added(size, own, replicas, keeping & inside, keeping - inside)
        for index in borders.leaving:
            size = graph.operations[index].output_bytes
            keeping = keepers[storages.root[index]]
            dealt += _added(size, replicas, own, keeping - inside, keeping & inside)
        # the script's own batch is not in the curve, and stays
        dealt += own * sum(data_bytes(graph, index) for index in borders.from_data)
    return PlacedHoldings(tuple(rows), held, shares, dealt)


def _added(
    size_bytes: float, copied: F64, before: F64, of_copy: set[int], of_original: set[int]
) -> F64:
    """What a deal adds to a value that the curve counts before it, `(world,)`.

    copied, before: each rank's share of the batch behind the deal and before it. of_copy,
    of_original: operations that keep the one or the other. Where none keeps the original, its copy
    stands in its place; that a rank keeps less then is left out, since not all moments have it.
    """
    if not of_copy:
        return np.zeros(len(copied))
    more: F64 = copied if of_original else np.maximum(copied - before, 0.0)
    return size_bytes * more
