"""Methods of published measurements as strategies, under the names of their tables."""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from autosync.domain import Domain
from autosync.errors import InvalidInput, NotFound
from autosync.search.designs.building_blocks import Choices, assemble, collective, into_pieces
from autosync.search.designs.known_designs import all_reduce_one_bucket, all_reduce_per_variable
from autosync.search.designs.mg_wfbp import mg_wfbp_strategy
from autosync.strategy import AllReduce, ParameterServer, Schedule, Strategy, VariableChoice

PIECE_BYTES = 4_096_000
"""BytePS's default partition (BYTEPS_PARTITION_BYTES)."""


class PublishedMethod(NamedTuple):
    """engine: whose seconds a message (`Constants.engine_seconds`) the method pays, or none."""

    build: Callable[[Domain], Strategy]
    engine: str
    sentence: str


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
    """The ranks themselves are the servers of such pieces, told once backward has ended."""
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

    With a single worker host nothing leaves it (BytePS then uses no server): an all-reduce inside.

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
    """Each piece to the server with the least load, summed inside each node before it leaves."""
    cluster, cut = domain.cluster, into_pieces(PIECE_BYTES)
    grouped = any(node.ranks > 1 for node in cluster.nodes)
    loads = dict.fromkeys(servers, 0)
    choices = {}
    for index, variable in enumerate(domain.graph.variables):
        partition, owners = cut(variable), []
        for length in partition.lengths:
            owner = min(servers, key=lambda server: (loads[server], server))
            loads[owner] += length
            owners.append(ParameterServer(owner, 0, hierarchical=grouped))
        choices[index] = VariableChoice(variable.name, partition, tuple(owners))
    return choices


METHODS: dict[str, PublishedMethod] = {
    "BSP-A2A": PublishedMethod(
        all_reduce_one_bucket, "", "One all-reduce of everything after backward."
    ),
    "WFBP-A2A": PublishedMethod(
        all_reduce_per_variable, "", "One all-reduce a tensor as it becomes ready, unfused."
    ),
    "MG-WFBP": PublishedMethod(
        mg_wfbp_strategy, "", "The same, a tensor merged with the next if that saves a startup."
    ),
    "ByteScheduler-A2A": PublishedMethod(
        bytescheduler_all_reduce, "bytescheduler", "ByteScheduler over Horovod's all-reduce."
    ),
    "BSP-PS": PublishedMethod(
        servers_after_backward, "", "BytePS on dedicated server hosts, after backward."
    ),
    "WFBP-PS": PublishedMethod(
        servers_overlapped, "", "BytePS on dedicated server hosts, during backward."
    ),
    "ByteScheduler-PS": PublishedMethod(
        servers_overlapped, "", "BytePS with ByteScheduler: the same servers and pieces."
    ),
    "BSP-PS-ranks": PublishedMethod(
        ranks_after_backward, "", "Servers on the ranks, told after backward; not measured."
    ),
}


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
