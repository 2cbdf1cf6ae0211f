"""A module in its graph: its operations, its variables, what crosses its borders, and what is dealt
there where it is placed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autosync.errors import InvalidStrategy
from autosync.graph import ModelGraph, Operation

ROW_INDEX_BYTES = 8
"""Of a row number that an embedding looks up; torch's are of 64 bits."""

LOOKUPS = frozenset({"embedding", "_embedding_bag"})


@dataclass(frozen=True, slots=True)
class ModuleBorders:
    """operations, variables: inside, in the graph's order. entering: (operation outside, first
    operation inside that reads it). leaving: operations inside whose output is read outside, or is
    the end of the graph. from_data: operations inside that read the batch itself, which no
    operation of the graph has made."""

    module: str
    operations: tuple[int, ...]
    variables: tuple[int, ...]
    entering: tuple[tuple[int, int], ...]
    leaving: tuple[int, ...]
    from_data: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Deal:
    """Samples, or their gradients, that go to the ranks of a placed module or come back.

    operation: at whose edge. is_backward: in its backward pass. is_after: behind it, else before.
    inward: to the module's ranks, else back to the replicas. size_bytes: of the samples of one
    replica at an even share. counted: ranks first exchange how many samples they have.
    """

    operation: int
    is_backward: bool
    is_after: bool
    inward: bool
    size_bytes: int
    counted: bool = False


def module_of(operation: Operation) -> str:
    """The qualified name of the module that ran it; empty for the model itself."""
    return operation.name.rpartition(".")[0]


@lru_cache(maxsize=1024)
def borders_of(graph: ModelGraph, module: str) -> ModuleBorders:
    """
    Raises:
        InvalidStrategy: no operation of the graph ran in a module of this name.
    """
    inside = [
        index
        for index, operation in enumerate(graph.operations)
        if module_of(operation) == module or operation.name.startswith(f"{module}.")
    ]
    if not inside:
        known = dict.fromkeys(filter(None, map(module_of, graph.operations)))
        raise InvalidStrategy(
            f"placement: no operation of graph {graph.name!r} belongs to module {module!r}.",
            thing=f"placement of {module}",
            value=module,
            remedy=f"Its modules are {', '.join(list(known)[:8])}"
            f"{', ...' if len(known) > 8 else ''}."
            if known
            else "The graph was not recorded from a module: place nothing.",
        )
    members = set(inside)
    entering: dict[int, int] = {}
    from_data = []
    for index in inside:
        operation = graph.operations[index]
        for source in operation.inputs:
            if source not in members:
                entering.setdefault(source, index)
        if operation.has_batch_dimension and not operation.inputs:
            from_data.append(index)
    read = {s for i, o in enumerate(graph.operations) if i not in members for s in o.inputs}
    read_inside = {s for i in inside for s in graph.operations[i].inputs}
    leaving = tuple(i for i in inside if i in read or i not in read_inside)
    held = tuple(i for i, v in enumerate(graph.variables) if v.name.startswith(f"{module}."))
    return ModuleBorders(
        module, tuple(inside), held, tuple(entering.items()), leaving, tuple(from_data)
    )


def data_bytes(graph: ModelGraph, index: int) -> int:
    """Bytes of the batch that an operation reads: an embedding's row numbers; of any other as many
    as its output, for the graph does not state them."""
    operation = graph.operations[index]
    if operation.type not in LOOKUPS or not operation.variables:
        return operation.output_bytes
    table = graph.variables[operation.variables[0]]
    row_bytes = max(1, table.size_bytes // table.shape[0])
    return operation.output_bytes // row_bytes * ROW_INDEX_BYTES


def deals_of(graph: ModelGraph, borders: ModuleBorders, trained: Sequence[bool]) -> Iterator[Deal]:
    """What is dealt in an iteration where the module is placed; the same on every rank. trained: of
    each operation, whether backward passes through it (`profiling.reach_variables`)."""
    counted: set[int] = set()
    for source, reader in borders.entering:
        size_bytes = graph.operations[source].output_bytes
        yield Deal(reader, False, False, True, size_bytes, counted=reader not in counted)
        counted.add(reader)
        if trained[source]:
            yield Deal(reader, True, True, False, size_bytes)
    for reader in borders.from_data:
        size_bytes = data_bytes(graph, reader)
        yield Deal(reader, False, False, True, size_bytes, counted=reader not in counted)
        counted.add(reader)
    for index in borders.leaving:
        size_bytes = graph.operations[index].output_bytes
        yield Deal(index, False, True, False, size_bytes)
        if trained[index]:
            yield Deal(index, True, False, True, size_bytes)


def moved_shares(source: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """`(world, world)`: which share of the batch goes from each rank to each where it is dealt from
    the division `source` to the division `target`, `(world,)` shares each; samples keep their
    order."""
    stop_from, stop_to = source.cumsum(), target.cumsum()
    start_from, start_to = stop_from - source, stop_to - target
    first = np.maximum(start_from[:, None], start_to[None, :])
    last = np.minimum(stop_from[:, None], stop_to[None, :])
    shares: NDArray[np.float64] = np.maximum(last - first, 0.0)
    shares[shares < 1e-12] = 0.0
    return shares
