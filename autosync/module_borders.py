"""A module in its graph: its operations, its variables, and what crosses its borders."""

from dataclasses import dataclass

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


def module_of(operation: Operation) -> str:
    """The qualified name of the module that ran it; empty for the model itself."""
    return operation.name.rpartition(".")[0]


class BordersByModule:
    """Of one graph, each found once."""

    def __init__(self, graph: ModelGraph):
        self._graph = graph
        self._found: dict[str, ModuleBorders] = {}

    def of(self, module: str) -> ModuleBorders:
        """See `borders_of`."""
        if module not in self._found:
            self._found[module] = borders_of(self._graph, module)
        return self._found[module]


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
    as its output, for the graph does not tell them."""
    operation = graph.operations[index]
    if operation.type not in LOOKUPS or not operation.variables:
        return operation.output_bytes
    table = graph.variables[operation.variables[0]]
    row_bytes = max(1, table.size_bytes // table.shape[0])
    return operation.output_bytes // row_bytes * ROW_INDEX_BYTES
