"""One graph of several example inputs, for a module whose control flow depends on them.

Each is recorded by itself. The graph has every operation that one of them ran: what has the same
name and comes in the same order is one operation, at the largest size that it had.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any, TypeVar

import torch

from autosync.errors import InvalidInput
from autosync.graph import ModelGraph, Operation, Variable
from autosync.importing.training_step import map_tensors

Item = TypeVar("Item", str, int)


@dataclass(frozen=True, slots=True)
class Examples:
    """Example inputs of one batch size, each as `import_module` takes it alone.

    Raises:
        InvalidInput: there is none.
    """

    inputs: Sequence[object]

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(self.inputs))
        if not self.inputs:
            raise InvalidInput(
                "there is no example input.",
                thing="Examples",
                value=0,
                remedy="Give one for each way that the step may take: Examples([first, second]).",
            )


@dataclass(frozen=True, slots=True)
class RecordedGraph:
    """What one example input showed. unreached: variables that got no gradient."""

    graph: ModelGraph
    unreached: frozenset[str]


def each_example(inputs: object) -> tuple[object, ...]:
    """The example inputs, where there are several, or the one."""
    return tuple(inputs.inputs) if isinstance(inputs, Examples) else (inputs,)


def moved_examples(inputs: Any, device: torch.device) -> Any:
    """The same inputs, or several, with every tensor on the device."""
    if isinstance(inputs, Examples):
        return Examples(tuple(moved_examples(each, device) for each in inputs.inputs))
    return map_tensors(inputs, lambda tensor: tensor.to(device))


def united_graph(recorded: Sequence[RecordedGraph], name: str) -> ModelGraph:
    """The graphs of one module as one.

    Backward and the order of gradients follow what was seen; where two examples differ in it, an
    operation ends as late as in either. Variables that an example did not reach are as the others
    show them.
    """
    graphs = [each.graph for each in recorded]
    order, slots = _in_one_order([[o.name for o in graph.operations] for graph in graphs])
    place = {slot: i for i, slot in enumerate(order)}
    placed = [[place[slot] for slot in mine] for mine in slots]
    operations = _operations(graphs, placed, len(order))
    backward, _ = _in_one_order(
        [
            [mine[i] for i in graph.backward_order]
            for graph, mine in zip(graphs, placed, strict=True)
        ],
        shared=True,
    )
    ended = {operation: i for i, operation in enumerate(backward)}
    after: list[int] = []
    keys: list[tuple[bool, int, int]] = []
    variables: list[Variable] = []
    for index, variable in enumerate(graphs[0].variables):
        reached = [i for i, each in enumerate(recorded) if variable.name not in each.unreached]
        shown = reached or range(len(graphs))
        ends = [placed[i][graphs[i].gradient_after[index]] for i in shown]
        after.append(max(ends, key=ended.__getitem__))
        first = graphs[shown[0]].gradient_order.index(index)
        keys.append((not reached, ended[after[-1]], first))
        uses = sum(index in operation.variables for operation in operations)
        seen = [graphs[i].variables[index] for i in shown]
        variables.append(_variable(seen, uses, len(graphs)))
    return ModelGraph(
        name=name,
        batch_size=graphs[0].batch_size,
        operations=operations,
        variables=tuple(variables),
        backward_order=tuple(backward),
        gradient_order=tuple(sorted(range(len(keys)), key=keys.__getitem__)),
        gradient_after=tuple(after),
        examples=len(graphs),
        frozen_bytes=graphs[0].frozen_bytes,
    )


def _in_one_order(
    sequences: Sequence[Sequence[Item]], shared: bool = False
) -> tuple[list[int], list[list[int]]]:
    """Slots in an order that each sequence keeps, and the slots of its items. Equal items share a
    slot but where that breaks the order.

    shared: the items are slots already, and stand where they come last.
    """
    order: list[int] = []
    items: dict[int, Item] = {}
    slots: list[list[int]] = []
    for sequence in sequences:
        known = [items[slot] for slot in order]
        matcher = SequenceMatcher(None, known, list(sequence), autojunk=False)
        joined: list[int] = []
        mine: list[int] = []
        for kind, begin, end, first, last in matcher.get_opcodes():
            kept: list[int] = order[begin:end]
            new: Sequence[int] = []
            if kind != "equal":
                new = range(len(items), len(items) + last - first)
                items.update(zip(new, sequence[first:last], strict=True))
            joined += [*kept, *new]
            mine += new if kind != "equal" else kept
        order = joined
        slots.append(mine)
    if shared:
        given = [int(items[slot]) for slot in order]
        return list(reversed(dict.fromkeys(reversed(given)))), slots
    return order, slots


def _operations(
    graphs: Sequence[ModelGraph], placed: Sequence[Sequence[int]], count: int
) -> tuple[Operation, ...]:
    seen: list[list[Operation]] = [[] for _ in range(count)]
    inputs: list[set[int]] = [set() for _ in range(count)]
    for graph, mine in zip(graphs, placed, strict=True):
        for operation, at in zip(graph.operations, mine, strict=True):
            seen[at].append(operation)
            inputs[at].update(mine[i] for i in operation.inputs)
    names: dict[str, int] = {}
    return tuple(
        replace(
            shown[0],
            name=_unlike(shown[0].name, names),
            forward_flops=max(each.forward_flops for each in shown),
            backward_flops=max(each.backward_flops for each in shown),
            output_bytes=max(each.output_bytes for each in shown),
            has_batch_dimension=any(each.has_batch_dimension for each in shown),
            inputs=tuple(sorted(read)),
            variables=tuple(sorted({v for each in shown for v in each.variables})),
            frequency=len(shown) / len(graphs),
        )
        for shown, read in zip(seen, inputs, strict=True)
    )


def _unlike(name: str, names: dict[str, int]) -> str:
    """A unique name: where examples run two operations in different orders, one is there twice."""
    names[name] = names.get(name, 0) + 1
    return name if names[name] == 1 else f"{name} ({names[name]})"


def _variable(shown: Sequence[Variable], uses: int, examples: int) -> Variable:
    """uses: operations that read it. shown: as the examples have it that give it a gradient."""
    sparse = all(variable.sparse for variable in shown)
    rows = [variable.factor_rows for variable in shown]
    touched = sum(variable.touched_rows for variable in shown)
    return replace(
        shown[0],
        sparse=sparse,
        touched_rows=-(-touched // examples) if sparse else 0,
        factor_rows=max(rows) if uses == 1 and min(rows) else 0,
        frequency=len(shown) / examples,
    )
