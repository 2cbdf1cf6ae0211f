"""A strategy with some of its modules placed on ranks of their own."""

from dataclasses import replace

from autosync.domain import Domain
from autosync.extensions.placement.document import PlacedModules, Placement, placed_module
from autosync.search.designs.building_blocks import ordered
from autosync.strategy import AllGather, AllReduce, Strategy, VariableChoice, whole


def with_placement(strategy: Strategy, domain: Domain, placement: PlacedModules) -> Strategy:
    """Variables that some ranks do not hold are all-reduced whole by those that do, a message a
    module (gathered where their gradients are sparse); all others stay as they are.

    In an explicit order such a message takes the place of its variables' first.
    """
    above = 1 + max(shard.group for choice in strategy.choices for shard in choice.shards)
    groups: dict[tuple[str, bool, str], int] = {}
    places = iter(strategy.schedule.positions or (0,) * strategy.shards)
    choices: list[VariableChoice] = []
    keys: list[list[float]] = []
    for variable, choice in zip(domain.graph.variables, strategy.choices, strict=True):
        own = [float(next(places)) for _ in choice.shards]
        placed = placed_module(placement, variable.name)
        if placed is None or len(placed.ranks) == domain.world_size:
            choices.append(choice)
            keys.append(own)
            continue
        alike = (placed.module, variable.sparse, variable.dtype)
        group = groups.setdefault(alike, above + len(groups))
        shard = AllGather(group) if variable.sparse else AllReduce(group)
        choices.append(VariableChoice(variable.name, whole(variable.shape), (shard,)))
        keys.append([min(own)])
    made = replace(strategy.without(Placement), choices=tuple(choices), name="")
    made = made.carrying(Placement(placement)) if placement else made
    if strategy.schedule.order == "explicit":
        made = ordered(made, keys)
    return made.canonical()
