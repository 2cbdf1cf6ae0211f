"""Byte scale s and time scale k, at which a small machine stands in for a cluster; and the graphs,
plans and bundles of a replay that moves s times the bytes.

A scaled variable is flat, of ceil(elements * s) elements, except where rows matter: a sparse
variable keeps its row length and loses rows, and a linear weight with sufficient factors shrinks
by sqrt(s) along both axes and in its factor rows, so that K(M + N) and MN both shrink by s. What
needs a variable's own shape otherwise, as PowerSGD does, is refused below s = 1."""

import math
from dataclasses import replace

from autosync.bundle import Bundle, VariableSpec
from autosync.cluster import Cluster
from autosync.codes import POWERSGD
from autosync.domain import Domain
from autosync.errors import InvalidInput, NotSupported
from autosync.graph import ITEM_BYTES, ModelGraph, Variable
from autosync.plan import Message, Piece, Plan, ShardSpec
from autosync.torch_engine import DdpArguments

CPU_SAFE_GBPS = 1.0
"""All nodes' NICs together, one direction, on two cores of any speed. Measured on slow ones, with
ResNet-50 on four nodes: at 2.4 Gbit/s (s = 1/16, k = 1) iterations spread by 8 to 15 %, at 0.6
(s = 1/32, k = 2) by 1 to 8 %; `autosync quickstart` prints such spreads."""

SMALLEST_BYTE_SCALE = 1 / 32
"""Smaller messages cost their startup and little else, and time scales do as well."""

SHORTEST_COMPUTE_SECONDS = 0.02

LARGEST_TIME_SCALE = 64.0

CORES_A_RANK = 2.0
"""The least that hosts of GPU clusters have for each GPU. With fewer cores, the ranks' own work
(copies, sums, updates) takes a larger part than there: one core a rank adds 1 to 8 % to an
iteration of the contest's answers, two cores half of that (benchmarks/contest/README.md)."""


def automatic_scales(domain: Domain) -> tuple[float, float]:
    """(byte scale s, time scale k) that a small machine carries truthfully.

    s: the largest of 1, 1/2 ... 1/32 that keeps all NICs together below `CPU_SAFE_GBPS`; where
    even 1/32 does not, k doubles. k also doubles until an iteration's compute lasts
    `SHORTEST_COMPUTE_SECONDS`, far above the timer noise of its waits.
    """
    byte_scale, time_scale = cluster_scales(domain.cluster)
    seconds = domain.profile.compute_seconds
    while 0 < seconds * time_scale < SHORTEST_COMPUTE_SECONDS and time_scale < LARGEST_TIME_SCALE:
        time_scale *= 2
    return byte_scale, time_scale


def cluster_scales(cluster: Cluster) -> tuple[float, float]:
    """The scales by the links alone; see `automatic_scales`."""
    total_gbps = sum(node.bandwidth_gbps for node in cluster.nodes)
    byte_scale, time_scale = 1.0, 1.0
    while byte_scale > SMALLEST_BYTE_SCALE and total_gbps * byte_scale > CPU_SAFE_GBPS:
        byte_scale /= 2
    while total_gbps * byte_scale / time_scale > CPU_SAFE_GBPS:
        time_scale *= 2
    return byte_scale, time_scale


def cores_a_rank(ranks: int, cores: int, time_scale: float) -> float:
    """The cores of each rank when this many ranks share a machine's cores, times the time scale."""
    return cores * time_scale / ranks


def time_scale_of_cores(ranks: int, cores: int) -> float:
    """The time scale that gives each rank `CORES_A_RANK`; 1 where the machine has that many."""
    return max(1.0, CORES_A_RANK * ranks / cores)


def scaled_graph(graph: ModelGraph, byte_scale: float) -> ModelGraph:
    """The graph that a replay realizes: same operations and orders, scaled variables.

    Variables are renamed to the parameter names of `replay.Replay`.

    Raises:
        InvalidInput: the byte scale is not in (0, 1].
    """
    if not 0 < byte_scale <= 1:
        raise InvalidInput(
            f"the byte scale is {byte_scale}: it must lie above 0 and not exceed 1.",
            thing="byte_scale",
            value=byte_scale,
            remedy="Use 1, 1/2, 1/4, 1/8 or 1/16.",
        )
    names = parameter_names(graph)
    variables = tuple(
        replace(_scaled(variable, byte_scale), name=name)
        for variable, name in zip(graph.variables, names, strict=True)
    )
    return replace(graph, variables=variables)


def parameter_names(graph: ModelGraph) -> tuple[str, ...]:
    """The replay's parameter of every variable: owned by the operation that uses it first."""
    first = [uses[0] if uses else 0 for uses in graph.consumers()]
    return tuple(
        f"operations.{operation}.v{index}"
        + (".weight" if variable.sparse or variable.factor_rows else "")
        for index, (operation, variable) in enumerate(zip(first, graph.variables, strict=True))
    )


def _scaled(variable: Variable, byte_scale: float) -> Variable:
    rows = variable.shape[0] if variable.shape else 1
    columns = variable.elements // rows
    if variable.sparse:
        rows_left = _ceil(rows * byte_scale)
        touched = min(rows_left, _ceil(variable.touched_rows * byte_scale))
        return replace(variable, shape=(rows_left, columns), touched_rows=touched)
    if variable.factor_rows:
        root = math.sqrt(byte_scale)
        return replace(
            variable,
            shape=(_ceil(rows * root), _ceil(columns * root)),
            factor_rows=_ceil(variable.factor_rows * root),
        )
    return replace(variable, shape=(_ceil(variable.elements * byte_scale),))


def _ceil(value: float) -> int:
    # sqrt(s) * rows of an exact multiple must not be pushed up by rounding.
    return max(1, math.ceil(value - 1e-9))


def scale_plan(plan: Plan, graph: ModelGraph, byte_scale: float) -> Plan:
    """The plan for the variables of `scaled_graph(graph, byte_scale)`.

    Every boundary b of a range of n elements moves to floor(b * n' / n), so shards and pieces
    still tile exactly. Shards become flat ranges, except row ranges of sparse variables. A shard
    too small for one element vanishes, and with it a message that carried nothing else.
    """
    small = scaled_graph(graph, byte_scale)
    shards = _scaled_shards(plan, graph, small)
    buckets = _scaled_buckets(plan, shards, graph, small)
    surviving = [i for i, message in enumerate(plan.messages) if buckets[message.bucket]]
    place = {old: new for new, old in enumerate(surviving)}
    bucket_place = {old: new for new, old in enumerate(i for i, c in enumerate(buckets) if c)}
    return replace(
        plan,
        bucket_bytes=max(1, int(plan.bucket_bytes * byte_scale)) if plan.bucket_bytes else 0,
        ddp=_scaled_arguments(plan.ddp, byte_scale),
        shards=shards,
        buckets=tuple(pieces for pieces in buckets if pieces),
        messages=tuple(
            replace(
                plan.messages[i],
                wire_bytes=_wire_bytes(plan.messages[i], plan, buckets, graph, byte_scale),
                after=place.get(plan.messages[i].after, -1),
                bucket=bucket_place[plan.messages[i].bucket],
            )
            for i in surviving
        ),
    )


def _scaled_arguments(ddp: DdpArguments | None, byte_scale: float) -> DdpArguments | None:
    if ddp is None:
        return None
    limits = tuple(max(1, int(limit * byte_scale)) for limit in ddp.bucket_limits_bytes)
    return replace(ddp, bucket_limits_bytes=limits)


def surviving_messages(plan: Plan, graph: ModelGraph, byte_scale: float) -> tuple[int, ...]:
    """The index in `plan` of every message of `scale_plan(plan, graph, byte_scale)`."""
    small = scaled_graph(graph, byte_scale)
    buckets = _scaled_buckets(plan, _scaled_shards(plan, graph, small), graph, small)
    return tuple(i for i, message in enumerate(plan.messages) if buckets[message.bucket])


def _scaled_buckets(
    plan: Plan, shards: tuple[ShardSpec, ...], graph: ModelGraph, small: ModelGraph
) -> list[tuple[Piece, ...]]:
    """The pieces of every bucket, without those that are too small for one element."""
    return [
        tuple(
            scaled
            for piece in pieces
            if (scaled := _scaled_piece(piece, plan, shards, graph, small)) is not None
        )
        for pieces in plan.buckets
    ]


def _scaled_shards(plan: Plan, graph: ModelGraph, small: ModelGraph) -> tuple[ShardSpec, ...]:
    shards = []
    begun: dict[int, int] = {}
    for shard in plan.shards:
        big, little = graph.variables[shard.variable], small.variables[shard.variable]
        rows = big.sparse and shard.axis == 0
        whole = big.shape[0] if rows else big.elements
        target = little.shape[0] if rows else little.elements
        length = shard.length if rows else shard_elements(shard, big)
        start = begun.get(shard.variable, 0)
        begun[shard.variable] = start + length
        low, high = start * target // whole, (start + length) * target // whole
        shards.append(ShardSpec(shard.variable, 0 if rows else -1, low, high - low))
    return tuple(shards)


def shard_elements(shard: ShardSpec, variable: Variable) -> int:
    if shard.axis < 0:
        return shard.length
    return shard.length * (variable.elements // variable.shape[shard.axis])


def _scaled_piece(
    piece: Piece,
    plan: Plan,
    shards: tuple[ShardSpec, ...],
    graph: ModelGraph,
    small: ModelGraph,
) -> Piece | None:
    shard, target = plan.shards[piece.shard], shards[piece.shard]
    big, little = graph.variables[shard.variable], small.variables[shard.variable]
    elements, scaled = shard_elements(shard, big), shard_elements(target, little)
    # Rows of a sparse variable stay whole.
    row = big.elements // big.shape[0] if big.sparse and big.shape else 1
    if scaled % row or piece.start % row or piece.stop % row or elements % row:
        row = 1
    start = piece.start // row * (scaled // row) // (elements // row) * row
    stop = piece.stop // row * (scaled // row) // (elements // row) * row
    return Piece(piece.shard, start, stop) if stop > start else None


def _wire_bytes(
    message: Message,
    plan: Plan,
    buckets: list[tuple[Piece, ...]],
    graph: ModelGraph,
    byte_scale: float,
) -> int:
    before = _bucket_bytes(plan.buckets[message.bucket], plan, graph)
    if message.operation.ragged or before == 0:  # rows and factors scale as a whole
        return max(1, round(message.wire_bytes * byte_scale))
    after = _bucket_bytes(buckets[message.bucket], plan, graph)
    return max(1, round(message.wire_bytes * after / before))


def _bucket_bytes(pieces: tuple[Piece, ...], plan: Plan, graph: ModelGraph) -> int:
    return sum(
        (piece.stop - piece.start)
        * ITEM_BYTES[graph.variables[plan.shards[piece.shard].variable].dtype]
        for piece in pieces
    )


def scaled_bundle(bundle: Bundle, domain: Domain, byte_scale: float) -> Bundle:
    """What the workers of a replay execute: the scaled plan and the scaled variable table.

    The strategy stays as it was chosen.

    Raises:
        InvalidInput: the bundle's variables are not the domain's.
        NotSupported: its messages cannot be scaled.
    """
    refuse_other_graph(bundle, domain)
    if byte_scale < 1:
        _refuse_low_rank(bundle.plan, byte_scale)
    small = scaled_graph(domain.graph, byte_scale)
    return replace(
        bundle,
        plan=scale_plan(bundle.plan, domain.graph, byte_scale),
        variables=tuple(VariableSpec(v.name, v.shape, v.dtype) for v in small.variables),
    )


def refuse_other_graph(bundle: Bundle, domain: Domain) -> None:
    """Raises InvalidInput when the bundle's variables are not the domain's."""
    wanted = tuple((v.name, v.shape, v.dtype) for v in domain.graph.variables)
    given = tuple((v.name, v.shape, v.dtype) for v in bundle.variables)
    if wanted != given:
        odd = next((g for g, w in zip(given, wanted, strict=False) if g != w), None)
        raise InvalidInput(
            f"the bundle has {len(given)} variables, graph {domain.graph.name!r} has "
            f"{len(wanted)}; first difference: {odd[0] if odd else 'their number'}.",
            thing="bundle.variables",
            value=odd[0] if odd else len(given),
            remedy="This strategy belongs to another graph.",
        )


def _refuse_low_rank(plan: Plan, byte_scale: float) -> None:
    """PowerSGD packs matrices: of what is flat the whole gradient would travel.

    Raises:
        NotSupported: names the first message that PowerSGD packs.
    """
    for index, message in enumerate(plan.messages):
        if message.encoding > POWERSGD:
            raise NotSupported(
                f"message {index} is packed by PowerSGD of rank {message.encoding - POWERSGD}, "
                f"which needs matrices as they are; byte scale {byte_scale:g} flattens them.",
                thing=f"message {index}",
                value=byte_scale,
                remedy="Measure it at byte scale 1, with a larger time scale where the links are "
                "too fast.",
            )
