"""Which variables and which activations a rank holds where modules are placed."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.module_borders import data_bytes
from autosync.placement import Placement

F64 = NDArray[np.float64]

OF_MODULES = 2
"""First row of an activation curve that holds a placed module's activations."""


@dataclass(frozen=True, slots=True)
class PlacedHoldings:
    """rows: of the activation curve, by operation: a placed module's activations with batch
    dimension have one of their own. held bool[world, V]: whether a rank holds a variable.
    shares f64[world, modules]: of the batch that each rank computes in each module, over the even
    one. dealt_bytes f64[world]: of samples that came from other ranks, to a module and back; kept
    until their backward is over.
    """

    rows: tuple[int, ...]
    held: NDArray[np.bool_]
    shares: F64
    dealt_bytes: F64


def placed_holdings(domain: Domain, placement: Placement, replicas: F64) -> PlacedHoldings:
    """replicas: each rank's share of the batch over the even one, `(world,)`."""
    graph, world = domain.graph, domain.world_size
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
        given = sum(graph.operations[source].output_bytes for source, _ in borders.entering)
        given += sum(data_bytes(graph, index) for index in borders.from_data)
        taken = sum(graph.operations[index].output_bytes for index in borders.leaving)
        dealt += shares[:, number] * given + replicas * taken
    return PlacedHoldings(tuple(rows), held, shares, dealt)
