"""In which order a TensorFlow graph uses its variables and makes their gradients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autosync.errors import InvalidInput

MAX_PATHS = 5_000_000
"""Entries of the sets of operations upstream of each node; edges walked from variables to their
first uses."""

PASS_THROUGH = frozenset({"ReadVariableOp", "Identity", "Cast", "Enter", "Switch"})
"""Types of nodes that only pass a variable on to its use."""

CONSTANT = frozenset({"Const", "VarHandleOp", "VariableV2", "Variable", "VarIsInitializedOp"})

UPDATES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter", "Apply", "Scatter")
"""Beginnings of the types that write a variable."""


@dataclass(frozen=True, slots=True)
class Use:
    """A node of the forward pass that is the first to use these variables.

    inputs: indices of the uses before it, from which a path leads here past no other use.
    """

    node: str
    type: str
    variables: tuple[str, ...]
    inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dataflow:
    """uses: in forward order. gradient_order: variables, as their gradients get ready."""

    uses: tuple[Use, ...]
    gradient_order: tuple[str, ...]


def read_dataflow(nodes: Sequence[Any], gradients: Mapping[str, str], source: str) -> Dataflow:
    """The dataflow of a graph whose variable `name` has the gradient tensor `gradients[name]`.

    Nodes count in the order of the file where that is topological, as TensorFlow writes them: in
    the order in which the program made them. Otherwise breadth-first from those without inputs.
    A variable's first use is its first consumer that sees data (a weight penalty sees none); uses
    of the backward pass come later. The gradient of a tied embedding is a sum, so it comes last.

    Raises:
        InvalidInput: a tensor names no node, or the graph is too tangled.
    """
    graph = _Graph(nodes, source)
    first = {name: graph.first_use(graph.index(name)) for name in gradients}
    ready = {name: graph.index(tensor) for name, tensor in gradients.items()}
    place = sorted(first, key=lambda name: graph.position[first[name]])
    used: dict[int, list[str]] = {}
    for name in place:
        used.setdefault(first[name], []).append(name)
    users = list(used)
    upstream = graph.upstream(users)
    number = {user: i for i, user in enumerate(users)}
    uses = tuple(
        Use(
            nodes[user].name,
            nodes[user].op,
            tuple(used[user]),
            tuple(sorted(i for other in upstream[user] if (i := number[other]) < number[user])),
        )
        for user in users
    )
    late = {name: -i for i, name in enumerate(place)}
    order = sorted(place, key=lambda name: (graph.position[ready[name]], late[name]))
    return Dataflow(uses, tuple(order))


class _Graph:
    """Nodes by index, with their data edges, a topological order, and whether data reaches them."""

    def __init__(self, nodes: Sequence[Any], source: str) -> None:
        self.nodes, self.source = nodes, source
        self.by_name = {node.name: i for i, node in enumerate(nodes)}
        self.inputs = [
            [self.index(tensor) for tensor in node.input if not tensor.startswith("^")]
            for node in nodes
        ]
        self.outputs: list[list[int]] = [[] for _ in nodes]
        for node, read in enumerate(self.inputs):
            for other in read:
                self.outputs[other].append(node)
        self.order = self._topological()
        self.position = [0] * len(nodes)
        for place, node in enumerate(self.order):
            self.position[node] = place
        self.fed = self._fed()
        self.walked = 0

    def index(self, tensor: str) -> int:
        name = tensor.partition(":")[0]
        if name not in self.by_name:
            raise InvalidInput(
                f"{self.source}: {tensor[:80]!r} names no node of the graph.",
                thing=self.source,
                value=tensor[:80],
                remedy="The file is incomplete.",
            )
        return self.by_name[name]

    def _topological(self) -> list[int]:
        """Inputs first; nodes on a cycle (TensorFlow's loops) come last, as they were given."""
        if all(other < node for node, read in enumerate(self.inputs) for other in read):
            return list(range(len(self.nodes)))
        waiting = [len(read) for read in self.inputs]
        order = [node for node, count in enumerate(waiting) if not count]
        for node in order:
            for other in self.outputs[node]:
                waiting[other] -= 1
                if not waiting[other]:
                    order.append(other)
        return order + [node for node, count in enumerate(waiting) if count]

    def _fed(self) -> list[bool]:
        """Data comes from what has no input and is no constant: placeholders, iterators."""
        pairs = zip(self.nodes, self.inputs, strict=True)
        fed = [not read and node.op not in CONSTANT for node, read in pairs]
        for node in self.order:
            fed[node] = fed[node] or any(fed[other] for other in self.inputs[node])
        return fed

    def first_use(self, variable: int) -> int:
        """The variable's own node, where nothing uses it."""
        seen, open_nodes = {variable}, [variable]
        consumers: list[int] = []
        for node in open_nodes:  # grows meanwhile
            self.walked += len(self.outputs[node])
            self._check_paths(self.walked)
            for other in self.outputs[node]:
                if other in seen or self.nodes[other].op.startswith(UPDATES):
                    continue
                seen.add(other)
                (open_nodes if self.nodes[other].op in PASS_THROUGH else consumers).append(other)
        fed = [node for node in consumers if self.fed[node]]
        return min(fed or consumers or [variable], key=self.position.__getitem__)

    def upstream(self, users: Sequence[int]) -> dict[int, frozenset[int]]:
        """For each user, the users before it from which a way leads past no other."""
        mine = set(users)
        last = max(self.position[user] for user in users)
        reached: list[frozenset[int]] = [frozenset()] * len(self.nodes)
        found: dict[int, frozenset[int]] = {}
        entries = 0
        for node in self.order[: last + 1]:
            sets = {reached[other] for other in self.inputs[node]}
            joined = frozenset().union(*sets) if len(sets) > 1 else next(iter(sets), frozenset())
            entries += len(joined) if len(sets) > 1 else 0
            self._check_paths(entries)
            if node in mine:
                found[node] = joined
                joined = frozenset({node})
            reached[node] = joined
        return found

    def _check_paths(self, paths: int) -> None:
        if paths > MAX_PATHS:
            raise InvalidInput(
                f"{self.source}: its {len(self.nodes)} nodes are too tangled.",
                thing=self.source,
                value=len(self.nodes),
                remedy="Import a graph without its optimizer.",
            )
