"""What designs are built of: choices of each variable, cuts, owners, groups and explicit orders."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from autosync.domain import Domain
from autosync.graph import ITEM_BYTES, Variable
from autosync.search.domain_facts import server_weights
from autosync.strategy import (
    AllGather,
    AllReduce,
    Factors,
    ParameterServer,
    Partition,
    Schedule,
    Strategy,
    Synchronizer,
    VariableChoice,
    even_replicas,
    pieces,
    split,
    whole,
)

TAIL_PART = 8
"""Where tails are folded, a last group below 1/`TAIL_PART` of the limit joins the group before
it: a message that is reduce-scattered and all-gathered pays its startup twice."""

MAX_PARTS = 40
"""AutoSync's published sampler cuts into at most 40 parts; a prime vocabulary would need 30,521."""

Design = Callable[[Domain], Strategy]
"""Raises NotSupported where it does not apply to the domain."""
Cut = Callable[[Variable], Partition]
Choices = Mapping[int, VariableChoice]
"""Choices by the variable's index. Groups are numbered last, by `assemble`."""


def uncut(variable: Variable) -> Partition:
    return whole(variable.shape)


def by_divisor(variable: Variable) -> Partition:
    """Axis 0 into its smallest divisor of at least 2 (AutoDist's PartitionedPS)."""
    return _by_rows(variable, lambda rows, parts: rows % parts == 0)


def by_non_divisor(variable: Variable) -> Partition:
    """Axis 0 into the smallest number of parts that leaves a remainder (UnevenPartitionedPS)."""
    return _by_rows(variable, lambda rows, parts: rows % parts != 0)


def _by_rows(variable: Variable, fits: Callable[[int, int], bool]) -> Partition:
    rows = variable.shape[0] if variable.shape else 1
    for parts in range(2, min(rows, MAX_PARTS) + 1):
        if fits(rows, parts):
            return split(variable.shape, 0, parts)
    return whole(variable.shape)


def into_pieces(size_bytes: int) -> Cut:
    """Flat pieces of `size_bytes`; a sparse variable into as many shards of whole rows."""

    def cut(variable: Variable) -> Partition:
        if not variable.sparse:
            return pieces(variable.shape, size_bytes // ITEM_BYTES[variable.dtype])
        parts = min(-(-variable.size_bytes // size_bytes), variable.shape[0], MAX_PARTS)
        return split(variable.shape, 0, parts)

    return cut


def everything(domain: Domain) -> list[int]:
    return list(range(len(domain.graph.variables)))


def dense(domain: Domain) -> list[int]:
    return [i for i, variable in enumerate(domain.graph.variables) if not variable.sparse]


def collective(domain: Domain, synchronizer: Synchronizer, cut: Cut = uncut) -> Choices:
    """Every shard by `synchronizer`; sparse gradients are gathered."""
    choices = {}
    for index, variable in enumerate(domain.graph.variables):
        partition = uncut(variable) if variable.sparse else cut(variable)
        chosen: Synchronizer = AllGather(0) if variable.sparse else synchronizer
        shards = (chosen,) * len(partition.lengths)
        choices[index] = VariableChoice(variable.name, partition, shards)
    return choices


def all_reduced(domain: Domain, group: Mapping[int, int]) -> Strategy:
    """Whole variables, each all-reduced in the group of its index, as gradients become ready;
    sparse gradients are gathered."""
    choices = []
    for index, variable in enumerate(domain.graph.variables):
        kind = AllGather if variable.sparse else AllReduce
        shard: Synchronizer = kind(group[index])
        choices.append(VariableChoice(variable.name, uncut(variable), (shard,)))
    return Strategy(tuple(choices), even_replicas(domain.world_size)).canonical()


def owned(
    domain: Domain,
    variables: list[int],
    cut: Cut = uncut,
    by_bandwidth: bool = False,
    hierarchical: bool = False,
) -> Choices:
    """Owners for the variables' shards, each to the server with the least load.

    by_bandwidth: load counts relative to the server's bandwidth, and the largest shards go first
        (the load-balance constraint without its noise); otherwise in the graph's order, by bytes.
    """
    weights = server_weights(domain) if by_bandwidth else [1.0] * domain.world_size
    loads = [0.0] * domain.world_size
    partitions = {index: cut(domain.graph.variables[index]) for index in variables}
    shards = [
        (_sent_bytes(domain, index, length, partition), index, part)
        for index, partition in partitions.items()
        for part, length in enumerate(partition.lengths)
    ]
    if by_bandwidth:
        shards.sort(key=lambda shard: (-shard[0], shard[1:]))
    owners = {index: [0] * len(partition.lengths) for index, partition in partitions.items()}
    for size, index, part in shards:
        server = min(range(len(loads)), key=lambda s: ((loads[s] + size) / weights[s], s))
        loads[server] += size
        owners[index][part] = server
    return owned_by(domain, partitions, owners, hierarchical)


def owned_by(
    domain: Domain,
    partitions: Mapping[int, Partition],
    owners: Mapping[int, Sequence[int]],
    hierarchical: bool = False,
) -> Choices:
    """Parameter servers of each variable's shards, by the variable's index."""
    return {
        index: VariableChoice(
            domain.graph.variables[index].name,
            partition,
            tuple(ParameterServer(server, 0, hierarchical) for server in owners[index]),
        )
        for index, partition in partitions.items()
    }


def returning_gradients(domain: Domain, choices: Choices) -> Choices:
    """Owned variables whose owners return average gradients. Touched rows return as values."""
    return {
        index: choice
        if domain.graph.variables[index].sparse
        else replace(
            choice,
            shards=tuple(
                replace(shard, returns_gradients=True)
                if isinstance(shard, ParameterServer)
                else shard
                for shard in choice.shards
            ),
        )
        for index, choice in choices.items()
    }


def factored(domain: Domain, variables: list[int]) -> Choices:
    """Sufficient factors for these variables."""
    named = {index: domain.graph.variables[index] for index in variables}
    return {
        index: VariableChoice(variable.name, uncut(variable), (Factors(0),))
        for index, variable in named.items()
    }


def _sent_bytes(domain: Domain, index: int, length: int, partition: Partition) -> float:
    """What a replica sends for a shard: touched rows only when sparse."""
    variable = domain.graph.variables[index]
    share = length / sum(partition.lengths)
    if variable.sparse:
        share *= min(1.0, int(domain.variables.touched_rows[index]) / variable.shape[0])
    return variable.size_bytes * share


def assemble(
    domain: Domain,
    *choices: Choices,
    schedule: Schedule | None = None,
    limit_bytes: int = 0,
    limit_shards: int = 0,
    fold_tails: bool = False,
) -> Strategy:
    """The strategy of these choices (later ones win), its groups cut in gradient-ready order.

    A group is full once it holds `limit_bytes` or `limit_shards`; without a limit every shard
    travels alone. fold_tails: a last group that holds less than 1/`TAIL_PART` of `limit_bytes`
    joins the one before it.
    """
    joined = {index: choice for part in choices for index, choice in part.items()}
    numbers: dict[int, list[int]] = {index: [] for index in joined}
    open_groups: dict[tuple[Synchronizer, str, bool], _OpenGroup] = {}
    groups = count()
    for index in domain.graph.gradient_order:
        variable = domain.graph.variables[index]
        partition = joined[index].partition
        for part, length in enumerate(partition.lengths):
            alike = (joined[index].shards[part], variable.dtype, variable.sparse)
            group = open_groups.get(alike)
            if group is None or group.is_full(limit_bytes, limit_shards):
                group = _OpenGroup(next(groups), before=group.number if group else None)
                open_groups[alike] = group
            group.size_bytes += _sent_bytes(domain, index, length, partition)
            group.shards += 1
            numbers[index].append(group.number)
    tails = {
        group.number: group.before
        for group in open_groups.values()
        if fold_tails and group.before is not None and group.size_bytes * TAIL_PART < limit_bytes
    }
    places: dict[int, int] = {}  # groups are numbered as a canonical strategy has them
    assembled = []
    for index in range(len(joined)):
        own = [tails.get(number, number) for number in numbers[index]]
        shards = tuple(
            replace(shard, group=places.setdefault(number, len(places)))
            for shard, number in zip(joined[index].shards, own, strict=True)
        )
        assembled.append(replace(joined[index], shards=shards))
    return Strategy(tuple(assembled), even_replicas(domain.world_size), schedule or Schedule())


@dataclass(slots=True)
class _OpenGroup:
    """The last group of shards that are synchronized alike; `before`: the one it followed."""

    number: int
    before: int | None
    size_bytes: float = 0.0
    shards: int = 0

    def is_full(self, limit_bytes: int, limit_shards: int) -> bool:
        """Without any limit every group holds one shard."""
        if not (limit_bytes or limit_shards):
            return True
        full_bytes = limit_bytes > 0 and self.size_bytes >= limit_bytes
        return full_bytes or (limit_shards > 0 and self.shards >= limit_shards)


@dataclass(frozen=True, slots=True)
class OrderedMessage:
    """A message in the order of sending: elements of variables, by index, all alike."""

    synchronizer: Synchronizer
    elements: tuple[tuple[int, int], ...]


def strategy_of(domain: Domain, messages: Sequence[OrderedMessage]) -> Strategy:
    """The strategy of these messages, sent in their order and into the next forward pass.

    A variable's parts lie in it in the order of sending.
    """
    shards: dict[int, list[tuple[int, int]]] = {}
    for number, message in enumerate(messages):
        for index, length in message.elements:
            shards.setdefault(index, []).append((length, number))
    choices = []
    for index, variable in enumerate(domain.graph.variables):
        parts = shards[index]
        lengths = tuple(length for length, _ in parts)
        partition = whole(variable.shape) if len(parts) == 1 else Partition(-1, lengths)
        synchronizers = tuple(
            replace(messages[number].synchronizer, group=number) for _, number in parts
        )
        choices.append(VariableChoice(variable.name, partition, synchronizers))
    replicas = even_replicas(domain.world_size)
    strategy = Strategy(tuple(choices), replicas, Schedule(overlap_forward=True))
    keys = [[number for _, number in shards[index]] for index in range(len(choices))]
    return ordered(strategy, keys).canonical()


def ordered(strategy: Strategy, keys: Sequence[Sequence[float]]) -> Strategy:
    """The strategy with its shards in the order of their keys, given variable by variable; equal
    keys in the order of the graph."""
    flat = [key for of_variable in keys for key in of_variable]
    places = sorted(range(len(flat)), key=flat.__getitem__)
    positions = [0] * len(flat)
    for position, place in enumerate(places):
        positions[place] = position
    schedule = replace(strategy.schedule, order="explicit", positions=tuple(positions))
    return replace(strategy, schedule=schedule)
