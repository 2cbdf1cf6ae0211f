"""What a policy may do with a group of operations, as HeteroG has it: one of M devices, or all
ranks, evenly or in proportion to speed, by all-reduce or by a parameter server; and the strategy
that the choices for all groups make."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.placement import PlacedModule, evenly, in_proportion
from autosync.search.designs.explicit_order import ordered
from autosync.search.designs.placed_strategy import with_placement
from autosync.search.domain_facts import rank_speeds, replica_layouts, server_weights
from autosync.search.placement.operation_groups import OperationGroups
from autosync.search.placement.placeable_modules import PlaceableModule
from autosync.search.space import Space
from autosync.strategy import ParameterServer, Strategy, even_replicas, whole

EVEN_ALL_REDUCE, EVEN_SERVER, FAIR_ALL_REDUCE, FAIR_SERVER = 0, 1, 2, 3
"""Behind the M devices."""

SCHEMES = 4


def allowed_actions(domain: Domain, servers: bool = True) -> NDArray[np.bool_]:
    """`(world + SCHEMES,)`: servers update parts of variables, which takes an elementwise
    optimizer; proportional shares take two speeds. servers: may hold variables."""
    allowed = np.ones(domain.world_size + SCHEMES, dtype=np.bool_)
    speeds = rank_speeds(domain)
    schemes = allowed[domain.world_size :]
    schemes[[EVEN_SERVER, FAIR_SERVER]] &= servers and domain.optimizer.elementwise
    schemes[[FAIR_ALL_REDUCE, FAIR_SERVER]] &= max(speeds) > min(speeds)
    return allowed


def strategy_of_actions(
    domain: Domain,
    base: Strategy,
    groups: OperationGroups,
    blocks: Sequence[PlaceableModule],
    actions: Sequence[int],
    uneven_shares: bool = True,
) -> Strategy:
    """actions: of each group. base: whose messages and order all-reduced variables keep. blocks:
    all placeable modules.

    The replicas' shares are those of most of the compute, of even and proportional, or even without
    `uneven_shares`; modules of groups that choose the other are dealt. Modules with one place make
    up the largest block that they fill, so that samples are dealt at its borders only.
    """
    world = domain.world_size
    schemes = [action - world for action in actions]
    fair_seconds = sum(
        float(seconds) * (1 if scheme >= FAIR_ALL_REDUCE else -1)
        for scheme, seconds in zip(schemes, groups.seconds, strict=True)
        if scheme >= 0
    )
    layouts = replica_layouts(domain, Space(uneven_shares=uneven_shares))
    is_fair = fair_seconds > 0 and len(layouts) > 1
    place_of: dict[str, PlacedModule | None] = {}
    owned: list[str] = []
    for modules, action, scheme in zip(groups.modules, actions, schemes, strict=True):
        for module in modules:
            place_of[module] = _place(domain, module, action, scheme, is_fair)
            if scheme in (EVEN_SERVER, FAIR_SERVER):
                owned.append(module)
    replicas = layouts[-1] if is_fair else even_replicas(world)
    made = _with_servers(replace(base, replicas=replicas), domain, owned)
    return with_placement(made, domain, _in_blocks(place_of, blocks))


def _place(
    domain: Domain, module: str, action: int, scheme: int, is_fair: bool
) -> PlacedModule | None:
    """None where the module follows the replicas."""
    if scheme < 0:
        return evenly(module, [action])
    wants_fair = scheme >= FAIR_ALL_REDUCE
    if wants_fair == is_fair:
        return None
    ranks = range(domain.world_size)
    return (
        in_proportion(module, ranks, rank_speeds(domain)) if wants_fair else evenly(module, ranks)
    )


def _in_blocks(
    place_of: dict[str, PlacedModule | None], blocks: Sequence[PlaceableModule]
) -> tuple[PlacedModule, ...]:
    """blocks: outer ones before those inside."""
    found: list[PlacedModule] = []
    for block in blocks:
        if any(placed.holds(block.name) for placed in found):
            continue
        inside = [
            placed
            for name, placed in place_of.items()
            if name == block.name or name.startswith(f"{block.name}.")
        ]
        first = inside[0] if inside else None
        if first is None:
            continue
        alike = all(
            each is not None and (each.ranks, each.shares) == (first.ranks, first.shares)
            for each in inside
        )
        if alike:
            found.append(replace(first, module=block.name))
    return tuple(found)


def _with_servers(strategy: Strategy, domain: Domain, modules: Sequence[str]) -> Strategy:
    """Variables of these modules whole at servers, each at the one that is then least busy for its
    bandwidth; those of a module and a server in one message."""
    if not modules:
        return strategy
    weights, load = server_weights(domain), np.zeros(domain.world_size)
    above = 1 + max(shard.group for choice in strategy.choices for shard in choice.shards)
    groups: dict[tuple[str, int, bool, str], int] = {}
    places = iter(strategy.schedule.positions or (0,) * strategy.shards)
    choices, keys = [], []
    for variable, choice in zip(domain.graph.variables, strategy.choices, strict=True):
        own = [float(next(places)) for _ in choice.shards]
        module = next((name for name in modules if variable.name.startswith(f"{name}.")), None)
        if module is None:
            choices.append(choice)
            keys.append(own)
            continue
        server = int(np.argmin((load + variable.size_bytes) / weights))
        load[server] += variable.size_bytes
        alike = (module, server, variable.sparse, variable.dtype)
        shard = ParameterServer(server, groups.setdefault(alike, above + len(groups)))
        choices.append(replace(choice, partition=whole(variable.shape), shards=(shard,)))
        keys.append([min(own)])
    made = replace(strategy, choices=tuple(choices))
    return ordered(made, keys) if strategy.schedule.order == "explicit" else made
