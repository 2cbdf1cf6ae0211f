"""What a policy may do with the module of a group, after HeteroG (section 4.1.2): one of M devices,
a set of devices alike or of a node, or all ranks, with the replicas' shares or the other ones, as
the base synchronizes it or by a parameter server; and the strategy that all groups' choices make.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.extensions.placement.device_sets import device_sets
from autosync.extensions.placement.document import PlacedModule, evenly, in_proportion
from autosync.extensions.placement.operation_groups import OperationGroups
from autosync.extensions.placement.placed_strategy import with_placement
from autosync.search.designs.building_blocks import ordered
from autosync.search.domain_facts import rank_speeds, server_weights
from autosync.simulator.cost.compute_time import compute_factors
from autosync.strategy import ParameterServer, Strategy, even_replicas, whole

FOLLOW, SERVER, OTHER_SHARES, OTHER_SHARES_SERVER = 0, 1, 2, 3
"""Behind the sets of devices: with the replicas, by server, dealt evenly where the replicas' shares
are by speed (by speed where they are even), and that by server. HeteroG's EV-AR, EV-PS, CP-AR and
CP-PS, told from the base."""

SCHEMES = 4
PLACE_FEATURES = 6


@dataclass(frozen=True, slots=True)
class PlacementActions:
    """sets: of ranks, S of them. allowed bool[G, S + SCHEMES]. features f32[S, PLACE_FEATURES]: of
    the sets."""

    sets: tuple[tuple[int, ...], ...]
    allowed: NDArray[np.bool_]
    features: NDArray[np.float32]

    @property
    def follow(self) -> int:
        """The action that leaves a group as the base has it."""
        return len(self.sets) + FOLLOW


def placement_actions(
    domain: Domain,
    base: Strategy,
    groups: OperationGroups,
    uneven_shares: bool = True,
    servers: bool = True,
) -> PlacementActions:
    """Servers update parts of variables, which takes an elementwise optimizer; other shares take
    two speeds; modules with sparse gradients live on one rank or on all. uneven_shares: samples may
    be dealt by speed. servers: may hold variables."""
    sets = tuple(device_sets(domain))
    allowed = np.ones((groups.count, len(sets) + SCHEMES), dtype=np.bool_)
    several = np.flatnonzero([len(ranks) > 1 for ranks in sets])
    allowed[np.ix_(np.flatnonzero(groups.sparse), several)] = False
    speeds = rank_speeds(domain)
    schemes = allowed[:, len(sets) :]
    schemes[:, [SERVER, OTHER_SHARES_SERVER]] &= servers and domain.optimizer.elementwise
    other = max(speeds) > min(speeds) and (uneven_shares or not _are_even(base, domain))
    schemes[:, [OTHER_SHARES, OTHER_SHARES_SERVER]] &= other
    return PlacementActions(sets, allowed, _place_features(domain, base, sets))


def strategy_of_actions(
    domain: Domain,
    base: Strategy,
    groups: OperationGroups,
    sets: Sequence[tuple[int, ...]],
    actions: Sequence[int],
) -> Strategy:
    """actions: of each group. base: whose replicas, messages and order all else keeps.

    Modules with one place make up the largest block whose groups all have it, so that samples are
    dealt at its borders only.
    """
    place_of: dict[str, PlacedModule | None] = {}
    owned: list[str] = []
    for module, action in zip(groups.modules, actions, strict=True):
        scheme = action - len(sets)
        if scheme < 0:
            place_of[module] = evenly(module, sets[action])
            continue
        is_dealt = scheme in (OTHER_SHARES, OTHER_SHARES_SERVER)
        place_of[module] = _with_other_shares(domain, base, module) if is_dealt else None
        if scheme in (SERVER, OTHER_SHARES_SERVER):
            owned.append(module)
    made = _with_servers(base, domain, owned)
    return with_placement(made, domain, _in_blocks(place_of, groups.blocks))


def _are_even(base: Strategy, domain: Domain) -> bool:
    return base.replicas == even_replicas(domain.world_size)


def _with_other_shares(domain: Domain, base: Strategy, module: str) -> PlacedModule:
    ranks = range(domain.world_size)
    if _are_even(base, domain):
        return in_proportion(module, ranks, rank_speeds(domain))
    return evenly(module, ranks)


def _place_features(
    domain: Domain, base: Strategy, sets: Sequence[tuple[int, ...]]
) -> NDArray[np.float32]:
    """Of each set: how many times as long as the slowest replica its ranks compute; their bandwidth
    over the mean; their memory over the model's bytes; their share of all ranks; whether they have
    nothing to synchronize; whether they are of one node."""
    cluster, world = domain.cluster, domain.world_size
    slowest = float(compute_factors(domain, base.replicas).max())
    devices = cluster.device_of_rank()
    factors = np.array([domain.profile.factor_on(device) for device in devices])
    weights = server_weights(domain) * world
    memory = np.array([device.memory_bytes for device in devices]) / domain.graph.size_bytes
    node = cluster.node_of_server()
    found = [
        (
            np.log(factors[list(ranks)].max() * world / len(ranks) / slowest),
            np.log(weights[list(ranks)].mean()),
            np.log1p(memory[list(ranks)].min()) / 4,
            len(ranks) / world,
            len(ranks) == 1,
            len(set(node[list(ranks)].tolist())) == 1,
        )
        for ranks in sets
    ]
    return np.array(found, dtype=np.float32)


def _in_blocks(
    place_of: dict[str, PlacedModule | None], blocks: Sequence[str]
) -> tuple[PlacedModule, ...]:
    """blocks: outer ones before those inside. One that holds a single group's module is not taken
    in its stead: what else is in it has no say."""
    found: list[PlacedModule] = []
    for block in blocks:
        if any(placed.holds(block) for placed in found):
            continue
        inside = [each for name, each in place_of.items() if name.startswith(f"{block}.")]
        if block in place_of:
            inside = [place_of[block]]
        elif len(inside) < 2:
            continue
        first = inside[0]
        if first is not None and all(
            each is not None and (each.ranks, each.shares) == (first.ranks, first.shares)
            for each in inside
        ):
            found.append(replace(first, module=block))
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
