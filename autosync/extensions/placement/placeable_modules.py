"""The modules of a model that may be placed, with their weights."""

from dataclasses import dataclass

from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.extensions.placement.document import evenly
from autosync.extensions.placement.module_borders import borders_of
from autosync.extensions.placement.verification import check_module


@dataclass(frozen=True, slots=True)
class PlaceableModule:
    """operations: inside, by index. variable_bytes: of its values. flops: of a forward and a
    backward pass, of one replica's batch. seconds: that it takes on the profile's device. is_leaf:
    no placeable module is inside.
    """

    name: str
    operations: tuple[int, ...]
    variable_bytes: int
    flops: int
    seconds: float
    is_leaf: bool

    @property
    def bytes_per_flop(self) -> float:
        """High where gradients are many and the work is little: fully connected layers, tables."""
        return self.variable_bytes / max(1, self.flops)


def modules_to_place(domain: Domain) -> tuple[PlaceableModule, ...]:
    """Blocks and leaves, in the order of their first variable, outer ones first."""
    names: dict[str, None] = {}
    for variable in domain.graph.variables:
        path = variable.name.split(".")[:-1]
        names.update(dict.fromkeys(".".join(path[: i + 1]) for i in range(len(path))))
    fitting = [name for name in names if _may_be_placed(name, domain)]
    return tuple(
        _weighed(name, domain, not any(other.startswith(f"{name}.") for other in fitting))
        for name in fitting
    )


def _may_be_placed(name: str, domain: Domain) -> bool:
    try:
        check_module(evenly(name, [0]), domain)
    except InvalidStrategy:
        return False
    is_read = any(each.name.rpartition(".")[0] == name for each in domain.graph.variables)
    return is_read or not _comes_back(name, domain)


def _comes_back(name: str, domain: Domain) -> bool:
    """Whether samples leave the module and enter it again, as they may in a list of modules, which
    is never called itself. Graphs of running jobs name such modules (`ModelGraph.uncalled`), others
    do not; so a block that is called twice, which could be placed, is not proposed either."""
    borders = borders_of(domain.graph, name)
    inside, sources = set(borders.operations), set(borders.operations)
    for index, operation in enumerate(domain.graph.operations):
        if index not in inside and not sources.isdisjoint(operation.inputs):
            sources.add(index)
    return any(source in sources for source, _ in borders.entering)


def _weighed(name: str, domain: Domain, is_leaf: bool) -> PlaceableModule:
    graph, profile, borders = domain.graph, domain.profile, borders_of(domain.graph, name)
    inside = [graph.operations[index] for index in borders.operations]
    return PlaceableModule(
        name,
        borders.operations,
        sum(graph.variables[index].size_bytes for index in borders.variables),
        sum(each.forward_flops + each.backward_flops for each in inside),
        sum(profile.forward_seconds[i] + profile.backward_seconds[i] for i in borders.operations),
        is_leaf,
    )
