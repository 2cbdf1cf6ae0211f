"""Published systems as strategies: MG-WFBP, Horovod, and methods of published measurements under
the names of their tables."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, count
from typing import NamedTuple

from autosync.domain import Domain
from autosync.errors import InvalidInput, NotFound
from autosync.graph import Variable
from autosync.search.designs.building_blocks import (
    Choices,
    Design,
    all_reduced,
    assemble,
    collective,
    into_pieces,
    owned_by,
)
from autosync.search.designs.known_designs import all_reduce_one_bucket, all_reduce_per_variable
from autosync.search.designs.wire_estimates import all_reduce_estimate, ready_seconds
from autosync.strategy import AllReduce, Schedule, Strategy
from autosync.units import MIB

FUSION_BYTES = 64 * MIB
"""Horovod's documented HOROVOD_FUSION_THRESHOLD; 128 MiB since version 0.21."""

CYCLE_SECONDS = 5e-3
"""Horovod's HOROVOD_CYCLE_TIME beside that threshold; 1 ms since version 0.21."""

PIECE_BYTES = 4_096_000
"""BytePS's default partition (BYTEPS_PARTITION_BYTES)."""


def mg_wfbp(domain: Domain) -> Strategy:
    """All-reduces in the order of readiness, neighbours merged by the published rule (Shi, Chu and
    Li 2019, algorithm 1), which is greedy and no optimum.

    The method estimates an all-reduce of M bytes as a + b M, from all-reduces that it timed alone.
    In the order of readiness, what has been merged so far could begin when it is ready and the
    message before it has ended; if the next gradient is ready less than a later, it is merged as
    well. Overlapped transfers, stragglers and engines are not in that estimate. Neighbours of
    another type are not merged; sparse gradients are gathered one by one. A gradient is ready when
    the slowest rank has it.
    """
    order = domain.graph.gradient_order
    return all_reduced(domain, dict(zip(order, _merged(domain), strict=True)))


def _merged(domain: Domain) -> list[int]:
    """The number of the message of each gradient, in ready order."""
    variables = [domain.graph.variables[index] for index in domain.graph.gradient_order]
    ready = ready_seconds(domain)[list(domain.graph.gradient_order)]
    startup_seconds, seconds_per_byte = all_reduce_estimate(domain)
    groups, group, free_at, size_bytes = [0], 0, 0.0, variables[0].size_bytes
    for last, variable in enumerate(variables[1:]):
        begin = max(free_at, float(ready[last]))
        wait = float(ready[last + 1]) - begin
        if _alike(variable, variables[last]) and wait < startup_seconds:
            size_bytes += variable.size_bytes
        else:
            free_at = begin + startup_seconds + seconds_per_byte * size_bytes
            size_bytes = variable.size_bytes
            group += 1
        groups.append(group)
    return groups


def _alike(one: Variable, other: Variable) -> bool:
    """Whether one message may carry both gradients."""
    return one.dtype == other.dtype and not one.sparse and not other.sparse


def horovod(domain: Domain, fusion_bytes: int = FUSION_BYTES) -> Strategy:
    """All-reduces fused as Horovod's background loop would (docs/tensor-fusion.rst): every cycle
    takes what has become ready, in that order and each type by itself, into buffers that hold at
    most `fusion_bytes`; a larger tensor goes alone. The next cycle begins when all of these are
    through, at the earliest a cycle time later.

    The loop follows the clock, so its messages differ from iteration to iteration; these are the
    ones of an iteration in which an all-reduce takes what it took alone. Sparse gradients are
    gathered one by one.
    """
    order = domain.graph.gradient_order
    ready = ready_seconds(domain)
    startup_seconds, seconds_per_byte = all_reduce_estimate(domain)
    groups, group = count(), {}
    now, coming = 0.0, 0
    while coming < len(order):
        now = max(now, float(ready[order[coming]]))
        first = coming
        while coming < len(order) and ready[order[coming]] <= now:
            coming += 1
        sent_bytes, messages = 0, set()
        buffers: dict[str, tuple[int, int]] = {}
        for index in order[first:coming]:
            variable = domain.graph.variables[index]
            number = _buffer(variable, fusion_bytes, buffers, groups)
            group[index] = number
            messages.add(number)
            sent_bytes += variable.size_bytes
        busy = startup_seconds * len(messages) + seconds_per_byte * sent_bytes
        now += max(busy, CYCLE_SECONDS)
    return all_reduced(domain, group)


def _buffer(
    variable: Variable,
    fusion_bytes: int,
    buffers: dict[str, tuple[int, int]],
    groups: Iterator[int],
) -> int:
    """The number of the message that takes the variable. buffers: of each type, the open message
    and its bytes."""
    if variable.sparse:
        return next(groups)
    number, filled = buffers.get(variable.dtype, (-1, fusion_bytes))
    if filled + variable.size_bytes > fusion_bytes:
        number, filled = next(groups), 0
    buffers[variable.dtype] = number, filled + variable.size_bytes
    return number


class PublishedMethod(NamedTuple):
    """engine: whose seconds a message (`Constants.engine_seconds`) the method pays, or none."""

    build: Design
    engine: str = ""


def bytescheduler_all_reduce(domain: Domain) -> Strategy:
    """What one module's backward makes ready travels together, in the order of readiness.

    ByteScheduler may cut tensors and send the next-used first. Its measured iterations end with
    the forward pass after all messages, and their number of operations goes with modules, not
    with bytes: neither cuts nor an overlapped forward pass show, so neither is assumed.
    """
    strategy = assemble(domain, collective(domain, AllReduce(0)))
    groups: dict[tuple[int, str, bool], int] = {}
    choices = []
    for i, variable in enumerate(domain.graph.variables):
        kind = (domain.graph.gradient_after[i], variable.dtype, variable.sparse)
        group = groups.setdefault(kind, len(groups))
        choice = strategy.choices[i]
        shards = tuple(replace(shard, group=group) for shard in choice.shards)
        choices.append(replace(choice, shards=shards))
    return replace(strategy, choices=tuple(choices)).canonical()


def servers_overlapped(domain: Domain) -> Strategy:
    """Pieces of 4 MB to their servers as gradients become ready.

    The same whether tensors are whole or ordered by priority: servers serve a piece as it comes,
    and the measured iterations of both agree within 2 % in all cells but two.
    """
    return assemble(domain, _on_dedicated_servers(domain))


def servers_after_backward(domain: Domain) -> Strategy:
    """The same once backward has ended."""
    return _after_backward(domain, servers_overlapped(domain))


def ranks_after_backward(domain: Domain) -> Strategy:
    """The same pieces on the ranks themselves, sent once backward has ended."""
    strategy = assemble(domain, _on_servers(domain, range(domain.world_size)))
    return _after_backward(domain, strategy)


def _after_backward(domain: Domain, strategy: Strategy) -> Strategy:
    """Sends first what becomes ready last, and everything else behind it."""
    order = domain.graph.gradient_order
    sizes = [len(choice.shards) for choice in strategy.choices]
    sending = (order[-1], *order[:-1])
    begins = dict(zip(sending, accumulate([0, *(sizes[i] for i in sending)]), strict=False))
    positions = tuple(begins[i] + part for i, size in enumerate(sizes) for part in range(size))
    return replace(strategy, schedule=Schedule("explicit", positions=positions))


def _on_dedicated_servers(domain: Domain) -> Choices:
    """Each piece to a dedicated server host.

    A single worker host all-reduces inside, as BytePS then uses no server.

    Raises:
        InvalidInput: the cluster has several worker hosts and no server host.
    """
    cluster = domain.cluster
    if sum(node.ranks > 0 for node in cluster.nodes) == 1:
        return collective(domain, AllReduce(0), into_pieces(PIECE_BYTES))
    servers = range(domain.world_size, cluster.servers)
    if not servers:
        raise InvalidInput(
            f"cluster {cluster.name!r} has no dedicated server host for parameter servers.",
            thing="cluster",
            value=cluster.name,
            remedy="Give it nodes with `server_only: true`; the bundled *-servers clusters do. Or "
            "take BSP-PS-ranks, whose servers are the ranks.",
        )
    return _on_servers(domain, servers)


def _on_servers(domain: Domain, servers: range) -> Choices:
    """Each piece to the server with the least load, summed in each node before it is sent."""
    cluster, cut = domain.cluster, into_pieces(PIECE_BYTES)
    grouped = any(node.ranks > 1 for node in cluster.nodes)
    loads = dict.fromkeys(servers, 0)
    partitions = {index: cut(variable) for index, variable in enumerate(domain.graph.variables)}
    owners: dict[int, list[int]] = {index: [] for index in partitions}
    for index, partition in partitions.items():
        for length in partition.lengths:
            owner = min(servers, key=lambda server: (loads[server], server))
            loads[owner] += length
            owners[index].append(owner)
    return owned_by(domain, partitions, owners, hierarchical=grouped)


METHODS: dict[str, PublishedMethod] = {
    "BSP-A2A": PublishedMethod(all_reduce_one_bucket),
    "WFBP-A2A": PublishedMethod(all_reduce_per_variable),
    "MG-WFBP": PublishedMethod(mg_wfbp),
    "ByteScheduler-A2A": PublishedMethod(bytescheduler_all_reduce, "bytescheduler"),
    "BSP-PS": PublishedMethod(servers_after_backward),
    "WFBP-PS": PublishedMethod(servers_overlapped),
    "ByteScheduler-PS": PublishedMethod(servers_overlapped),
    "BSP-PS-ranks": PublishedMethod(ranks_after_backward),
}
"""By the names of the published tables; the last one was not measured."""


def method_named(name: str) -> PublishedMethod:
    """Upper and lower case are the same.

    Raises:
        NotFound: lists the methods there are.
    """
    for known, method in METHODS.items():
        if known.lower() == name.lower():
            return method
    raise NotFound(
        f"no method is called {name!r}.",
        thing="method",
        value=name,
        remedy=f"There are: {', '.join(METHODS)}.",
    )
