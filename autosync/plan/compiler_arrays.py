"""What the compiler's kernels read and write, as plain tuples of arrays: a domain and a population;
a plan's columns and their scratch space."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autosync.cluster import Cluster
from autosync.codes import ENCODINGS, POWERSGD
from autosync.domain import Domain
from autosync.plan.plan_table import Teams
from autosync.population import Option, Population

I64 = NDArray[np.int64]

ALL_RANKS, NODE_TEAMS, LEADERS, FIRST_SERVER = 0, 1, 2, 3
"""Team indices every PlanTable starts with; FIRST_SERVER + s is the leaders with server s in
place of its node's leader; the explicit rings of the population's options follow."""

ALGORITHMS = {"ring": 0, "tree": 1, "hierarchical": 2}


class DomainArrays(NamedTuple):
    """world, nodes: ranks and nodes that hold ranks; grouped: some node has several ranks.

    Per variable (V): elements, item_bytes, first_dim i64; dims i64[V, 8]; ready, first_use i32;
    sparse bool; touched_rows, factor_rows i64. by_ready i64[V]: variables in ready order.
    ready_seconds f64[V]: in ready order. bytes_per_second f64[1 + servers]: of the slowest link
    that messages among all ranks cross, then those of each owner; for the list schedule only.
    """

    world: int
    nodes: int
    grouped: bool
    elements: NDArray[np.int64]
    item_bytes: NDArray[np.int64]
    dims: NDArray[np.int64]
    ready: NDArray[np.int32]
    first_use: NDArray[np.int32]
    sparse: NDArray[np.bool_]
    touched_rows: NDArray[np.int64]
    factor_rows: NDArray[np.int64]
    by_ready: NDArray[np.int64]
    ready_seconds: NDArray[np.float64]
    bytes_per_second: NDArray[np.float64]


class PopulationArrays(NamedTuple):
    """The population's columns, and its options as columns (O entries).

    algorithm u8, ring i32 (which explicit ring, -1 none), hierarchical, sharded, returns_gradients
    bool, encoding u8.
    """

    order: NDArray[np.uint8]
    slice_bytes: NDArray[np.int64]
    overlap: NDArray[np.bool_]
    idle_gather: NDArray[np.bool_]
    axis: NDArray[np.int8]
    parts: NDArray[np.int32]
    first: NDArray[np.int64]
    variable: NDArray[np.uint16]
    length: NDArray[np.int64]
    method: NDArray[np.uint8]
    server: NDArray[np.int16]
    group: NDArray[np.int32]
    option: NDArray[np.uint16]
    position: NDArray[np.int32]
    algorithm: NDArray[np.uint8]
    ring: NDArray[np.int32]
    hierarchical: NDArray[np.bool_]
    sharded: NDArray[np.bool_]
    returns_gradients: NDArray[np.bool_]
    encoding: NDArray[np.uint8]


class PlanArrays(NamedTuple):
    """The columns of a PlanTable, allocated for the most that can come out."""

    first: I64
    operation: NDArray[np.uint8]
    channel: NDArray[np.uint8]
    root: NDArray[np.int16]
    ranks: NDArray[np.uint16]
    encoding: NDArray[np.uint8]
    carries_values: NDArray[np.bool_]
    wire_bytes: I64
    ready: NDArray[np.int32]
    after: I64
    gate: NDArray[np.int32]
    update: NDArray[np.uint8]
    bucket: I64
    bucket_first: I64
    piece_row: I64
    piece_start: I64
    piece_stop: I64


class Scratch(NamedTuple):
    """Per-strategy working arrays: R rows, V variables, C buckets at most.

    row, value: a bucket's first row (population index) and its payload were it not encoded.
    second: of its payload, what PowerSGD's second all-reduce carries; else 0. load: seconds on the
    wire of its first half. at: seconds from the start of backward, of its gradients and then of
    its first half's arrival. halves i64[2C]: where all-gathers leave while the wire is idle,
    2 * bucket + half in the order in which they are sent.
    """

    starts: I64
    place: I64
    rows: I64
    row: I64
    wire: I64
    value: I64
    second: I64
    ready: I64
    gate: I64
    key: I64
    order: I64
    sorted: I64
    heap: I64
    last: I64
    halves: I64
    load: NDArray[np.float64]
    at: NDArray[np.float64]
    stages: NDArray[np.int32]


def domain_arrays(domain: Domain) -> DomainArrays:
    table, cluster = domain.variables, domain.cluster
    node_of_rank = cluster.node_of_server()[: domain.world_size]
    nodes = len(np.unique(node_of_rank))
    return DomainArrays(
        world=domain.world_size,
        nodes=nodes,
        grouped=nodes < domain.world_size,
        elements=table.elements,
        item_bytes=table.item_bytes,
        dims=table.dims,
        ready=table.ready,
        first_use=table.first_use,
        sparse=table.sparse,
        touched_rows=table.touched_rows,
        factor_rows=table.factor_rows,
        by_ready=np.array(domain.graph.gradient_order, dtype=np.int64),
        ready_seconds=domain.timing.ready_seconds,
        bytes_per_second=crossed_bytes_per_second(cluster),
    )


def crossed_bytes_per_second(cluster: Cluster) -> NDArray[np.float64]:
    """Payload rate of the slowest link crossed, `(1 + servers,)`: by a ring through the ranks in
    their order, then between every rank and each owner."""
    node = cluster.node_of_server().astype(np.int64)
    workers, rates = node[: cluster.world_size], cluster.bandwidth_bytes_per_second()
    ring = rates[workers, np.roll(workers, -1)].min()
    served = rates[workers[:, None], node[None, :]]
    np.fill_diagonal(served, np.inf)  # an owner sends itself nothing
    return np.append(ring, served.min(axis=0))


def population_arrays(population: Population) -> PopulationArrays:
    options = population.options
    orders = explicit_rings(options)
    return PopulationArrays(
        order=population.order,
        slice_bytes=population.slice_bytes,
        overlap=population.overlap,
        idle_gather=population.idle_gather,
        axis=population.axis,
        parts=population.parts,
        first=population.first,
        variable=population.variable,
        length=population.length,
        method=population.method,
        server=population.server,
        group=population.group,
        option=population.option,
        position=population.position,
        algorithm=np.array([ALGORITHMS[option.algorithm] for option in options], dtype=np.uint8),
        ring=np.array(
            [orders.index(o.device_order) if o.device_order else -1 for o in options]
        ).astype(np.int32),
        hierarchical=np.array([option.hierarchical for option in options], dtype=np.bool_),
        sharded=np.array([option.sharded_update for option in options], dtype=np.bool_),
        returns_gradients=np.array([o.returns_gradients for o in options], dtype=np.bool_),
        encoding=np.array([encoding_code(option) for option in options], dtype=np.uint8),
    )


def encoding_code(option: Option) -> int:
    if option.encoding.name == "powersgd":
        return POWERSGD + option.encoding.rank
    return ENCODINGS.index(option.encoding.name)


def explicit_rings(options: tuple[Option, ...]) -> list[tuple[int, ...]]:
    """The distinct device orders among the options, in order of appearance."""
    return list(dict.fromkeys(option.device_order for option in options if option.device_order))


def team_table(domain: Domain, options: tuple[Option, ...]) -> tuple[Teams, ...]:
    """The teams that plans of this domain refer to; see `FIRST_SERVER` for their order."""
    cluster = domain.cluster
    node_of_server = cluster.node_of_server()
    world = domain.world_size
    members: dict[int, list[int]] = {}
    for rank in range(world):
        members.setdefault(int(node_of_server[rank]), []).append(rank)
    everyone: Teams = (tuple(range(world)),)
    node_teams: Teams = tuple(tuple(ranks) for ranks in members.values() if len(ranks) > 1)
    leaders: Teams = (tuple(ranks[0] for ranks in members.values()),)
    with_server = tuple(
        (
            tuple(
                server if node == node_of_server[server] else ranks[0]
                for node, ranks in members.items()
            )
            + ((server,) if int(node_of_server[server]) not in members else ()),
        )
        for server in range(cluster.servers)
    )
    rings = tuple((order,) for order in explicit_rings(options))
    return (everyone, node_teams, leaders, *with_server, *rings)
