"""What the compiler's kernels read and write, as plain tuples of arrays: a domain and a population;
a plan's columns and their scratch space."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autosync.cluster import Cluster
from autosync.codes import ENCODINGS, POWERSGD, Method, Order
from autosync.domain import Domain
from autosync.plan.plan_table import ALL_RANKS, FIRST_SERVER, MESSAGE_COLUMNS, explicit_rings
from autosync.population import Option, Population

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

# The enumerations of autosync.codes that several files need, as plain integers that a compiled loop
# can hold.
M_PS, M_AR, M_RS, M_AG, M_FACTORS = map(int, Method)
O_FIFO, O_PRIORITY, O_EXPLICIT, O_DDP = map(int, Order)

STAGES = 4
"""The longest chain of messages: reduce, push, pull, broadcast."""

ALGORITHMS = {"ring": 0, "tree": 1, "hierarchical": 2}


class DomainArrays(NamedTuple):
    """world, nodes: ranks and nodes that hold ranks; grouped: some node has several ranks.
    one_order: a rank runs all messages one after another (`runtime.layout.records`).

    Per variable (V): elements, item_bytes, first_dim i64; dims i64[V, 8]; ready, first_use i32;
    sparse bool; touched_rows, factor_rows i64. by_ready i64[V]: variables in ready order.
    ready_seconds f64[V]: in ready order. bytes_per_second f64[1 + servers]: of the slowest link
    that messages among all ranks cross, then those of each owner; for the list schedule only.
    """

    world: int
    nodes: int
    grouped: bool
    one_order: bool
    elements: I64
    item_bytes: I64
    dims: I64
    ready: NDArray[np.int32]
    first_use: NDArray[np.int32]
    sparse: NDArray[np.bool_]
    touched_rows: I64
    factor_rows: I64
    by_ready: I64
    ready_seconds: F64
    bytes_per_second: F64


class PopulationArrays(NamedTuple):
    """The population's columns, and its options as columns (O entries).

    algorithm u8, ring i32 (the team of a ring: all ranks, or an explicit order of them),
    hierarchical, sharded, returns_gradients bool, encoding u8.
    """

    order: NDArray[np.uint8]
    slice_bytes: I64
    overlap: NDArray[np.bool_]
    idle_gather: NDArray[np.bool_]
    axis: NDArray[np.int8]
    parts: NDArray[np.int32]
    first: I64
    variable: NDArray[np.uint16]
    length: I64
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

    row, value: a bucket's first row (population index) and its payload were it not encoded; of
    owned rows of tables, that of their new values. second: of its payload, what PowerSGD's second
    all-reduce carries; else 0. load: seconds on the wire of its reduction. at: seconds from the
    start of backward, of its gradients and then of its reduction's arrival. messages i64[2C]: in
    the order in which they are sent, 2 * bucket of a reduction, 2 * bucket + 1 of the gather behind
    it.
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
    messages: I64
    load: F64
    at: F64
    stages: NDArray[np.int32]


def domain_arrays(domain: Domain) -> DomainArrays:
    table, cluster = domain.variables, domain.cluster
    nodes = len(np.unique(cluster.node_of_server()[: domain.world_size]))
    of_table = ("elements", "item_bytes", "dims", "ready", "first_use", "sparse", "touched_rows",
                "factor_rows")  # fmt: skip
    return DomainArrays(
        world=domain.world_size,
        nodes=nodes,
        grouped=nodes < domain.world_size,
        one_order=cluster.backend == "nccl",
        by_ready=np.array(domain.graph.gradient_order, dtype=np.int64),
        ready_seconds=domain.timing.ready_seconds,
        bytes_per_second=crossed_bytes_per_second(cluster),
        **{name: getattr(table, name) for name in of_table},
    )


def crossed_bytes_per_second(cluster: Cluster) -> F64:
    """Payload rate of the slowest link crossed, `(1 + servers,)`: by a ring through the ranks in
    their order, then between every rank and each owner."""
    node, world = cluster.node_of_server().astype(np.int64), cluster.world_size
    workers, rates = node[:world], cluster.bandwidth_bytes_per_second()
    ring = rates[workers, np.roll(workers, -1)].min()
    inside = rates.diagonal().copy()
    np.fill_diagonal(rates, np.inf)
    ranks = np.bincount(workers, minlength=len(rates))
    across = rates[ranks > 0].min(axis=0)
    others = ranks[node] - (np.arange(len(node)) < world)  # an owner sends itself nothing
    served = np.minimum(across[node], np.where(others > 0, inside[node], np.inf))
    return np.append(ring, served)


def population_arrays(population: Population, domain: Domain) -> PopulationArrays:
    options = population.options
    rings: dict[tuple[int, ...], int] = {(): ALL_RANKS}
    for order in explicit_rings(options):
        rings[order] = FIRST_SERVER + domain.cluster.servers + len(rings) - 1
    names = PopulationArrays._fields
    columns = {name: getattr(population, name) for name in names[: names.index("algorithm")]}
    return PopulationArrays(
        **columns,
        algorithm=np.array([ALGORITHMS[option.algorithm] for option in options], dtype=np.uint8),
        ring=np.array([rings[option.device_order or ()] for option in options], dtype=np.int32),
        hierarchical=np.array([option.hierarchical for option in options], dtype=np.bool_),
        sharded=np.array([option.sharded_update for option in options], dtype=np.bool_),
        returns_gradients=np.array([o.returns_gradients for o in options], dtype=np.bool_),
        encoding=np.array([encoding_code(option) for option in options], dtype=np.uint8),
    )


def encoding_code(option: Option) -> int:
    if option.encoding.name == "powersgd":
        return POWERSGD + option.encoding.rank
    return ENCODINGS.index(option.encoding.name)


def allocate(population: Population, domain: DomainArrays) -> tuple[PlanArrays, Scratch]:
    """Room for the most messages that can come out; pages that stay unused cost nothing."""
    if len(population):
        groups = np.maximum.reduceat(population.group, population.first[:-1]).astype(np.int64) + 1
    else:
        groups = np.zeros(0, dtype=np.int64)
    items = np.unique(domain.item_bytes)  # a slice holds whole elements of one type
    total_bytes = int((domain.elements * domain.item_bytes).sum())
    slice_bytes = np.maximum(population.slice_bytes[:, None] // items * items, items).min(axis=1)
    slices = np.where(population.slice_bytes > 0, total_bytes // slice_bytes + 1, 0)
    buckets = groups + slices
    all_buckets, pieces = int(buckets.sum()), population.rows + int(slices.sum())
    columns: dict[str, Any] = {
        name: np.empty(all_buckets * STAGES, dtype=dtype)
        for name, dtype in MESSAGE_COLUMNS.items()
        if name in PlanArrays._fields
    }
    out = PlanArrays(
        first=np.zeros(len(population) + 1, dtype=np.int64),
        bucket_first=np.zeros(all_buckets + 1, dtype=np.int64),
        piece_row=np.empty(pieces, dtype=np.int64),
        piece_start=np.empty(pieces, dtype=np.int64),
        piece_stop=np.empty(pieces, dtype=np.int64),
        **columns,
    )
    most_rows, most_buckets = int(np.diff(population.first).max(initial=0)), buckets.max(initial=0)
    of_buckets = ("row", "wire", "value", "second", "ready", "gate", "key", "order", "sorted",
                  "heap", "last")  # fmt: skip
    work = Scratch(
        starts=np.empty(most_rows + 2, dtype=np.int64),
        place=np.empty(len(domain.elements), dtype=np.int64),
        rows=np.empty(most_rows, dtype=np.int64),
        messages=np.empty(2 * most_buckets, dtype=np.int64),
        load=np.empty(most_buckets),
        at=np.empty(most_buckets),
        stages=np.zeros((STAGES, 6), dtype=np.int32),
        **{name: np.empty(most_buckets, dtype=np.int64) for name in of_buckets},
    )
    return out, work
