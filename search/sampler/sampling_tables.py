"""What the kernels read, a domain and a space as flat arrays; and the columns that they fill."""

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autosync.codes import Method
from autosync.domain import MAX_DIMS, Domain
from autosync.errors import InvalidStrategy
from autosync.extensions.registry import Entries
from autosync.population import Option, synchronizer_row
from autosync.search.domain_facts import (
    check_pins,
    factor_costs,
    replica_layouts,
    ring_orders,
    server_weights,
)
from autosync.search.extension_proposals import Drawn, drawn_extensions
from autosync.search.space import Space
from autosync.strategy import EXACT, Replica, VariableChoice
from autosync.verification import check_slices

VARIANTS = (
    (Method.PARAMETER_SERVER, Option()),
    (Method.PARAMETER_SERVER, Option(hierarchical=True)),
    (Method.ALL_REDUCE, Option()),
    (Method.ALL_REDUCE, Option(algorithm="tree")),
    (Method.ALL_REDUCE, Option(algorithm="hierarchical")),
    (Method.REDUCE_SCATTER, Option()),
    (Method.REDUCE_SCATTER, Option(sharded_update=True)),
    (Method.ALL_GATHER, Option()),
    (Method.FACTORS, Option()),
    (Method.PARAMETER_SERVER, Option(returns_gradients=True)),
    (Method.PARAMETER_SERVER, Option(hierarchical=True, returns_gradients=True)),
)
"""How a shard may be synchronized, numbered as the constants below."""

(
    OWNER,
    OWNER_HIERARCHICAL,
    RING,
    TREE,
    HIERARCHICAL,
    SCATTER,
    SCATTER_SHARDED,
    GATHER,
    FACTORS,
    OWNER_RETURNS_GRADIENTS,
    OWNER_HIERARCHICAL_RETURNS_GRADIENTS,
) = range(len(VARIANTS))

FIRST_ORDER = len(VARIANTS)
"""Ring all-reduces along explicit orders of the ranks (`ring_orders`) follow."""

Record = Any
"""An element of a structured array: numba gives it the fields of its dtype as attributes."""

VARIABLE = np.dtype(
    [
        ("elements", np.int64),
        ("item_bytes", np.int64),
        ("sent_bytes", np.float64),
        ("dims", np.int64, (MAX_DIMS,)),
        ("rank", np.int64),
        ("dtype", np.int64),
        ("sparse", np.bool_),
        ("by_rows", np.bool_),
        ("cuttable", np.bool_),
        ("factorable", np.bool_),
        ("cheap_factors", np.bool_),
        ("matrix", np.bool_),
        ("wide", np.bool_),
        ("pin", np.int64),
        ("pin_axis", np.int64),
        ("pin_parts", np.int64),
    ],
    align=True,
)
"""A variable as the kernels read it.

sent_bytes: what one replica sends for it (touched rows only when sparse). dtype: number of its
type and sparsity, of which a message holds one. by_rows: cut along axis 0 only. cheap_factors:
factors are fewer bytes than a ring's. matrix: PowerSGD can pack it. wide: a 16-bit encoding
shortens it. pin: its first pinned row, or -1.
"""

RULES = np.dtype(
    [
        ("layouts", np.int64),
        ("max_parts", np.int64),
        ("max_groups", np.int64),
        ("options", np.int64),
        ("dtypes", np.int64),
        ("pin_groups", np.int64),
        ("owners", np.bool_),
        ("reduces", np.bool_),
        ("scatters", np.bool_),
        ("elementwise", np.bool_),
        ("hierarchy", np.bool_),
        ("priority", np.bool_),
        ("overlap", np.bool_),
        ("orders", np.int64),
        ("load_balance", np.bool_),
        ("adjacent_merge", np.bool_),
        ("shard_methods", np.bool_),
        ("idle_gathers", np.bool_),
        ("carries_owned", np.bool_),
    ],
    align=True,
)
"""What may be drawn. owners: parameter servers; reduces, scatters: the two collectives. orders:
explicit orders of a ring. carries_owned: owned proposals may carry something of an extension."""

SYNCHRONIZER = np.dtype([("method", np.uint8), ("option", np.uint16)], align=True)
PIN = np.dtype(
    [
        ("length", np.int64),
        ("method", np.uint8),
        ("server", np.int16),
        ("option", np.uint16),
        ("group", np.int32),
    ],
    align=True,
)


class Tables(NamedTuple):
    """V variables, S servers, E encodings; records, since numba passes those as pointers.

    variables VARIABLE[V]. rules RULES[1]. synchronizers SYNCHRONIZER[]: of
    `variant * E + encoding`. pins PIN[].
    ready_order i64[V]: variables in the order in which their gradients become ready.
    weight, log_weight f64[S]: each server's part of the cluster's NIC bandwidth.
    alias_chance f64[S], alias i64[S]: to draw a server by its weight.
    slice_bytes, encodings, extensions i64[]: what to draw from. low_rank bool[E]: which encodings
    are PowerSGD.
    """

    variables: NDArray[np.void]
    rules: NDArray[np.void]
    synchronizers: NDArray[np.void]
    pins: NDArray[np.void]
    ready_order: NDArray[np.int64]
    weight: NDArray[np.float64]
    log_weight: NDArray[np.float64]
    alias_chance: NDArray[np.float64]
    alias: NDArray[np.int64]
    slice_bytes: NDArray[np.int64]
    encodings: NDArray[np.int64]
    extensions: NDArray[np.int64]
    low_rank: NDArray[np.bool_]


class SamplerInputs(NamedTuple):
    """The kernels' tables, with the documents that the population's numbers point to."""

    tables: Tables
    options: tuple[Option, ...]
    layouts: tuple[tuple[Replica, ...], ...]
    extensions: tuple[Entries, ...]


@lru_cache(maxsize=8)
def sampler_inputs(domain: Domain, space: Space) -> SamplerInputs:
    """Everything the sampler needs to know of a domain and a space.

    Raises:
        InvalidStrategy: a pin names no variable, or an owner that is no rank; or no strategy can
            have the pinned choices; or slices would be too many.
    """
    encodings = (EXACT, *(e for e in dict.fromkeys(space.encodings) if e != EXACT))
    options: dict[Option, int] = {}
    orders = ring_orders(domain)
    rings = [(Method.ALL_REDUCE, Option(device_order=order)) for order in orders]
    synchronizers = [
        (method, options.setdefault(replace(option, encoding=encoding), len(options)))
        for method, option in (*VARIANTS, *rings)
        for encoding in encodings
    ]
    variables = _variables(domain, space)
    pins = _pins(domain, space.pins, variables, options)
    check_pins(domain, space)
    for slice_bytes in space.slice_bytes:
        check_slices(slice_bytes, domain)
    layouts = replica_layouts(domain, space)
    drawn = [encodings.index(encoding) for encoding in dict.fromkeys(space.encodings)]
    carried = drawn_extensions(domain, space)
    extensions = ((), *(each for each in dict.fromkeys(carried.entries) if each))
    weight = server_weights(domain)
    alias_chance, alias = alias_table(weight)
    tables = Tables(
        variables=variables,
        rules=_rules(domain, space, len(layouts), len(options), len(orders), pins, carried),
        synchronizers=np.array(synchronizers, dtype=SYNCHRONIZER),
        pins=pins,
        ready_order=np.array(domain.graph.gradient_order, dtype=np.int64),
        weight=weight,
        log_weight=np.log(weight),
        alias_chance=alias_chance,
        alias=alias,
        slice_bytes=np.array(space.slice_bytes, dtype=np.int64),
        encodings=np.array(drawn, dtype=np.int64),
        extensions=np.array([extensions.index(each) for each in carried.entries], dtype=np.int64),
        low_rank=np.array([encoding.name == "powersgd" for encoding in encodings]),
    )
    return SamplerInputs(tables, tuple(options), layouts, extensions)


def alias_table(weight: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """A drawn column stands for itself with its chance, else for its alias, `(S,)` each: together
    every server has its weight (Vose 1991). weight: adds up to 1."""
    chance = weight * len(weight)
    alias = np.arange(len(weight))
    small = [i for i in range(len(weight)) if chance[i] < 1.0]
    large = [i for i in range(len(weight)) if chance[i] >= 1.0]
    while small and large:
        less, more = small.pop(), large[-1]
        alias[less] = more
        chance[more] -= 1.0 - chance[less]
        if chance[more] < 1.0:
            small.append(large.pop())
    chance[small + large] = 1.0  # what rounding left
    return chance, alias


def _variables(domain: Domain, space: Space) -> NDArray[np.void]:
    table, graph = domain.variables, domain.graph
    found = np.zeros(len(graph.variables), dtype=VARIABLE)
    touched = np.minimum(table.touched_rows, table.dims[:, 0]) / table.dims[:, 0]
    names = sorted({(v.dtype, v.sparse) for v in graph.variables})
    factors, ring = factor_costs(domain)
    found["elements"], found["item_bytes"] = table.elements, table.item_bytes
    found["sent_bytes"] = table.size_bytes * np.where(table.sparse, touched, 1.0)
    found["dims"], found["rank"] = table.dims, table.rank
    found["dtype"] = [names.index((v.dtype, v.sparse)) for v in graph.variables]
    found["sparse"] = found["by_rows"] = table.sparse
    for operation in graph.operations:
        if "embedding" in operation.type:
            found["by_rows"][list(operation.variables)] = True
    found["cuttable"] = (table.size_bytes >= space.whole_below_bytes) & (table.elements > 1)
    found["factorable"] = (table.factor_rows > 0) & space.factors
    found["cheap_factors"] = found["factorable"] & (factors < ring)
    found["matrix"] = (table.rank >= 2) & ~table.sparse
    found["wide"] = table.item_bytes > 2
    found["pin"] = -1
    return found


def _rules(
    domain: Domain,
    space: Space,
    layouts: int,
    options: int,
    orders: int,
    pins: NDArray[np.void],
    carried: Drawn,
) -> NDArray[np.void]:
    rules = np.zeros(1, dtype=RULES)
    rules["layouts"], rules["options"], rules["orders"] = layouts, options, orders
    rules["max_parts"], rules["max_groups"] = space.max_parts, space.max_groups
    rules["dtypes"] = len({(v.dtype, v.sparse) for v in domain.graph.variables})
    rules["pin_groups"] = len(np.unique(pins["group"]))
    rules["elementwise"] = domain.optimizer.elementwise
    rules["owners"] = space.parameter_server
    rules["reduces"], rules["scatters"] = space.all_reduce, space.reduce_scatter
    several = any(node.ranks > 1 for node in domain.cluster.nodes)
    rules["hierarchy"] = space.hierarchical and several
    rules["priority"], rules["overlap"] = space.priority, space.overlap_forward
    rules["carries_owned"] = carried.owned
    for switch in ("load_balance", "adjacent_merge", "shard_methods", "idle_gathers"):
        rules[switch] = getattr(space, switch)
    return rules


def _pins(
    domain: Domain,
    pins: tuple[VariableChoice, ...],
    variables: NDArray[np.void],
    options: dict[Option, int],
) -> NDArray[np.void]:
    """The pinned choices as rows, noted in `variables`; their options join the table of options."""
    place = {variable.name: i for i, variable in enumerate(domain.graph.variables)}
    groups: dict[int, int] = {}
    rows: list[tuple[int, int, int, int, int]] = []
    for pin in pins:
        if pin.variable not in place:
            raise InvalidStrategy(
                f"a pin names {pin.variable!r}, which graph {domain.graph.name!r} does not have.",
                thing="space.pins",
                value=pin.variable,
                remedy="Pin variables of this graph only.",
            )
        index = place[pin.variable]
        variables["pin"][index] = len(rows)
        variables["pin_axis"][index] = pin.partition.axis
        variables["pin_parts"][index] = len(pin.shards)
        for length, shard in zip(pin.partition.lengths, pin.shards, strict=True):
            method, server, option = synchronizer_row(shard)
            if method == Method.PARAMETER_SERVER and not 0 <= server < domain.world_size:
                raise InvalidStrategy(
                    f"the pin of {pin.variable!r} names owner {server}, of ranks 0 to "
                    f"{domain.world_size - 1}.",
                    thing="space.pins",
                    value=server,
                    remedy="Let a rank own it.",
                )
            number = options.setdefault(option, len(options))
            group = groups.setdefault(shard.group, len(groups))
            rows.append((length, method, server, number, group))
    return np.array(rows, dtype=PIN)


class ChoiceColumns(NamedTuple):
    """What n proposals choose as a whole, and for each of V variables.

    layout, order u8[n], slice_bytes i64[n], overlap, idle_gather bool[n]: as in `Population`.
    extension u16[n]: index into `SamplerInputs.extensions`.
    axis i8[n, V], parts i32[n, V]: the partition of each variable.
    synchronizer i16[n, V]: an index into `Tables.synchronizers`, or -1 where it is pinned.
    flat_length i64[n, V]: elements of a shard of the flattened tensor (the last may be shorter);
        of variables that are not cut along an axis.
    """

    layout: NDArray[np.uint8]
    order: NDArray[np.uint8]
    slice_bytes: NDArray[np.int64]
    overlap: NDArray[np.bool_]
    idle_gather: NDArray[np.bool_]
    extension: NDArray[np.uint16]
    axis: NDArray[np.int8]
    parts: NDArray[np.int32]
    synchronizer: NDArray[np.int16]
    flat_length: NDArray[np.int64]


class ShardColumns(NamedTuple):
    """The N shards of n proposals; the columns are those of `Population`.

    first i64[n + 1]: the shards of proposal i are first[i] to first[i + 1].
    server and group: -1 while they are not chosen; collectives have no server.
    """

    first: NDArray[np.int64]
    variable: NDArray[np.uint16]
    length: NDArray[np.int64]
    method: NDArray[np.uint8]
    server: NDArray[np.int16]
    option: NDArray[np.uint16]
    group: NDArray[np.int32]


def empty_choices(proposals: int, variables: int) -> ChoiceColumns:
    shape = (proposals, variables)
    return ChoiceColumns(
        layout=np.empty(proposals, dtype=np.uint8),
        order=np.empty(proposals, dtype=np.uint8),
        slice_bytes=np.empty(proposals, dtype=np.int64),
        overlap=np.empty(proposals, dtype=np.bool_),
        idle_gather=np.empty(proposals, dtype=np.bool_),
        extension=np.zeros(proposals, dtype=np.uint16),
        axis=np.empty(shape, dtype=np.int8),
        parts=np.empty(shape, dtype=np.int32),
        synchronizer=np.empty(shape, dtype=np.int16),
        flat_length=np.empty(shape, dtype=np.int64),
    )


def empty_shards(parts: NDArray[np.int32]) -> ShardColumns:
    """Arrays for as many shards as the proposals' variables have parts."""
    first = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum(parts.sum(axis=1, dtype=np.int64), out=first[1:])
    rows = int(first[-1])
    return ShardColumns(
        first=first,
        variable=np.empty(rows, dtype=np.uint16),
        length=np.empty(rows, dtype=np.int64),
        method=np.empty(rows, dtype=np.uint8),
        server=np.empty(rows, dtype=np.int16),
        option=np.empty(rows, dtype=np.uint16),
        group=np.empty(rows, dtype=np.int32),
    )
