"""Many strategies as ragged arrays (CSR), for the sampler, the compiler and the simulators."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from autosync.codes import Method, Order
from autosync.domain import Domain
from autosync.errors import InvalidInput, InvalidStrategy
from autosync.extensions.registry import Entries, entry_of
from autosync.strategy import (
    EXACT,
    Algorithm,
    AllGather,
    AllReduce,
    Encoding,
    Factors,
    ParameterServer,
    Partition,
    ReduceScatter,
    Replica,
    Schedule,
    Strategy,
    Synchronizer,
    VariableChoice,
)
from autosync.torch_engine import DdpArguments, FullyShard

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Option:
    """The rarer choices of a shard; a population's rows index a table of these.

    algorithm, device_order: of an all-reduce. hierarchical, returns_gradients: of a parameter
    server. sharded_update: of a reduce-scatter.
    """

    algorithm: Algorithm = "ring"
    device_order: tuple[int, ...] = ()
    hierarchical: bool = False
    sharded_update: bool = False
    encoding: Encoding = EXACT
    returns_gradients: bool = False


@dataclass(frozen=True, slots=True)
class Population:
    """n strategies over V variables; N rows (shards) in all.

    layouts: table of replica layouts. options: table of options. engines: table of torch's engines,
        the first of which is none. ddp_arguments: table of arguments of torch's DDP, the first of
        which is none. extensions: table of what strategies carry of extensions, the first of which
        is nothing.
    layout u8[n], engine, ddp, extension u16[n]: index into layouts, engines, ddp_arguments,
        extensions.
    order u8[n]: `codes.Order`. slice_bytes i64[n].
    overlap bool[n]: synchronization may run into the next forward pass.
    idle_gather bool[n]: of such, all-gathers also start during backward, when nothing is in flight.
    axis i8[n, V]: the cut dimension, -1 flat. parts i32[n, V]: shards of the variable.
    first i64[n + 1]: strategy i has the rows first[i]:first[i + 1], variable by variable in the
        graph's order, shard by shard.
    variable u16[N]. length i64[N]: along the axis (elements when flat). method u8[N]:
        `codes.Method`. server i16[N]: the owner, -1 without one. group i32[N]: in
        [0, rows of the strategy). option u16[N]: index into options.
    position i32[N]: place in the sending order, for `Order.EXPLICIT`; else 0.
    """

    layouts: tuple[tuple[Replica, ...], ...]
    options: tuple[Option, ...]
    engines: tuple[FullyShard | None, ...]
    ddp_arguments: tuple[DdpArguments | None, ...]
    extensions: tuple[Entries, ...]
    layout: NDArray[np.uint8]
    engine: NDArray[np.uint16]
    ddp: NDArray[np.uint16]
    extension: NDArray[np.uint16]
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

    def __len__(self) -> int:
        return len(self.layout)

    @property
    def rows(self) -> int:
        return len(self.variable)

    def take(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> "Population":
        """The strategies of these indices, in their order."""
        chosen = np.asarray(indices, dtype=np.int64)
        counts = np.diff(self.first)[chosen]
        first = np.concatenate(([0], np.cumsum(counts)))
        rows = np.arange(first[-1]) + np.repeat(self.first[chosen] - first[:-1], counts)
        taken = {name: getattr(self, name)[chosen] for name in BY_STRATEGY}
        taken |= {name: getattr(self, name)[rows] for name in BY_ROW}
        return replace(self, first=first, **taken)

    def entry(self, index: int, kind: type[T]) -> T | None:
        """One strategy's document of an extension; None if it has none."""
        return entry_of(self.extensions[self.extension[index]], kind)

    def carrying(self, kind: type[Any]) -> NDArray[np.bool_]:
        """`(n,)`: whether each strategy has a document of an extension."""
        carried = [entry_of(entries, kind) is not None for entries in self.extensions]
        return np.array(carried, dtype=np.bool_)[self.extension]

    def between(self, start: int, stop: int) -> "Population":
        """The strategies from start to stop; their arrays are parts of these, not copies."""
        rows = slice(int(self.first[start]), int(self.first[stop]))
        taken = {name: getattr(self, name)[start:stop] for name in BY_STRATEGY}
        taken |= {name: getattr(self, name)[rows] for name in BY_ROW}
        first = self.first[start : stop + 1] - rows.start
        return replace(self, first=first, **taken)


BY_STRATEGY = (
    "layout",
    "engine",
    "ddp",
    "extension",
    "order",
    "slice_bytes",
    "overlap",
    "idle_gather",
    "axis",
    "parts",
)
BY_ROW = ("variable", "length", "method", "server", "group", "option", "position")

TABLES = {
    "layout": "layouts",
    "option": "options",
    "engine": "engines",
    "ddp": "ddp_arguments",
    "extension": "extensions",
}
"""By the column that indexes it, each table of a population."""


def concatenate(populations: Sequence[Population]) -> Population:
    """One population of all their strategies, in order; their tables are merged.

    Raises:
        InvalidInput: there is no population, they are of graphs of different size, or they have
            more different layouts of shares than one holds.
    """
    if not populations or len({population.axis.shape[1] for population in populations}) > 1:
        raise InvalidInput(
            f"cannot join {len(populations)} populations: give at least one, all of one graph.",
            thing="populations",
            value=[population.axis.shape for population in populations],
        )
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(population, name) for population in populations])
        for name in (*BY_STRATEGY, *BY_ROW)
        if name not in TABLES
    }
    for name, table in TABLES.items():
        codes: dict[Any, int] = {}
        columns = []
        for population in populations:
            of_one = [codes.setdefault(item, len(codes)) for item in getattr(population, table)]
            if name == "layout":
                _check_layouts(len(codes))
            column = getattr(population, name)
            columns.append(np.array(of_one, dtype=column.dtype)[column])
        joined |= {name: np.concatenate(columns), table: tuple(codes)}
    counts = np.concatenate([np.diff(population.first) for population in populations])
    return Population(first=np.concatenate(([0], np.cumsum(counts))), **joined)


ORDER_CODES = {"fifo": Order.FIFO, "priority": Order.PRIORITY, "explicit": Order.EXPLICIT}
ORDER_CODES["ddp"] = Order.DDP
ORDER_WORDS = {code: word for word, code in ORDER_CODES.items()}
METHODS = {int(method): method for method in Method}


MOST_LAYOUTS = 2**8
"""What `layout` of a population can number."""


def _check_layouts(count: int) -> None:
    """Raises InvalidInput where there are more layouts of shares than a population can number."""
    if count > MOST_LAYOUTS:
        raise InvalidInput(
            f"the strategies have {count} different layouts of shares; a population holds "
            f"{MOST_LAYOUTS}.",
            thing="strategies",
            value=count,
            remedy="Give fewer strategies at once.",
        )


def encode(strategies: "list[Strategy] | tuple[Strategy, ...]", domain: Domain) -> Population:
    """The population of `strategies`; `decode` is its inverse up to names and group numbers.

    Raises:
        InvalidStrategy: a strategy does not name exactly the graph's variables, in order.
        InvalidInput: they have more different layouts of shares than a population holds.
    """
    layouts: dict[tuple[Replica, ...], int] = {}
    options: dict[Option, int] = {}
    engines: dict[FullyShard | None, int] = {None: 0}
    arguments: dict[DdpArguments | None, int] = {None: 0}
    extensions: dict[Entries, int] = {(): 0}
    names = [variable.name for variable in domain.graph.variables]
    for strategy in strategies:
        if [choice.variable for choice in strategy.choices] != names:
            raise _different_variables(strategy, names)
    choices = [strategy.choices for strategy in strategies]
    engine = [engines.setdefault(strategy.engine, len(engines)) for strategy in strategies]
    ddp = [arguments.setdefault(each.schedule.ddp, len(arguments)) for each in strategies]
    carried = [extensions.setdefault(each.extensions, len(extensions)) for each in strategies]
    head = _columns([_strategy_row(strategy, layouts) for strategy in strategies], 5)
    row = _columns([row for s in strategies for row in _shard_rows(s, options)], 6)
    _check_layouts(len(layouts))
    positions = [p for s in strategies for p in s.schedule.positions or (0,) * s.shards]
    shape = (len(strategies), len(names))
    axes = [choice.partition.axis for of_one in choices for choice in of_one]
    parts = [len(choice.shards) for of_one in choices for choice in of_one]
    return Population(
        layouts=tuple(layouts),
        options=tuple(options),
        engines=tuple(engines),
        ddp_arguments=tuple(arguments),
        extensions=tuple(extensions),
        layout=head[0].astype(np.uint8),
        engine=np.array(engine, dtype=np.uint16),
        ddp=np.array(ddp, dtype=np.uint16),
        extension=np.array(carried, dtype=np.uint16),
        order=head[1].astype(np.uint8),
        slice_bytes=head[2].copy(),
        overlap=head[3].astype(np.bool_),
        idle_gather=head[4].astype(np.bool_),
        axis=np.array(axes, dtype=np.int8).reshape(shape),
        parts=np.array(parts, dtype=np.int32).reshape(shape),
        first=np.array([0, *accumulate(s.shards for s in strategies)], dtype=np.int64),
        variable=row[0].astype(np.uint16),
        length=row[1].copy(),
        method=row[2].astype(np.uint8),
        server=row[3].astype(np.int16),
        group=row[4].astype(np.int32),
        option=row[5].astype(np.uint16),
        position=np.array(positions, dtype=np.int32),
    )


def _columns(rows: list[tuple[int, ...]], width: int) -> NDArray[np.int64]:
    """A `(width, rows)` array."""
    return np.array(rows, dtype=np.int64).reshape(len(rows), width).T


def _strategy_row(
    strategy: Strategy, layouts: dict[tuple[Replica, ...], int]
) -> tuple[int, int, int, bool, bool]:
    """Layout, order, slice bytes, overlap and idle gather; a new layout is added to the table."""
    schedule = strategy.schedule
    return (
        layouts.setdefault(strategy.replicas, len(layouts)),
        ORDER_CODES[schedule.order],
        schedule.slice_bytes,
        schedule.overlap_forward,
        schedule.gather == "when_idle",
    )


def _shard_rows(strategy: Strategy, options: dict[Option, int]) -> Iterator[tuple[int, ...]]:
    """Variable, length, method, server, group and option of each shard; new options are added to
    the table."""
    groups: dict[int, int] = {}
    known: dict[Synchronizer, tuple[int, ...]] = {}  # most shards are like others of their group
    for variable, choice in enumerate(strategy.choices):
        for length, shard in zip(choice.partition.lengths, choice.shards, strict=True):
            row = known.get(shard)
            if row is None:
                method, server, option = synchronizer_row(shard)
                group = groups.setdefault(shard.group, len(groups))
                code = options.setdefault(option, len(options))
                row = known[shard] = (method, server, group, code)
            yield variable, length, *row


def synchronizer_row(shard: Synchronizer) -> tuple[int, int, Option]:
    """Method code, owner (-1 without one) and option of a shard."""
    match shard:
        case ParameterServer():
            option = Option(
                hierarchical=shard.hierarchical,
                encoding=shard.encoding,
                returns_gradients=shard.returns_gradients,
            )
            return Method.PARAMETER_SERVER, shard.server, option
        case AllReduce():
            option = Option(shard.algorithm, shard.device_order, encoding=shard.encoding)
            return Method.ALL_REDUCE, -1, option
        case ReduceScatter():
            option = Option(sharded_update=shard.sharded_update, encoding=shard.encoding)
            return Method.REDUCE_SCATTER, -1, option
        case AllGather():
            return Method.ALL_GATHER, -1, Option()
        case Factors():
            return Method.FACTORS, -1, Option()


def decode(population: Population, index: int, domain: Domain) -> Strategy:
    """Strategy `index` of the population as a document."""
    rows = slice(int(population.first[index]), int(population.first[index + 1]))
    lengths = population.length[rows].tolist()
    columns = (population.method, population.server, population.group, population.option)
    made: dict[tuple[int, ...], Synchronizer] = {}  # most shards are like others of their group
    shards = []
    for row in zip(*(column[rows].tolist() for column in columns), strict=True):
        if row not in made:
            method, server, group, option = row
            made[row] = _synchronizer(METHODS[method], server, group, population.options[option])
        shards.append(made[row])
    axes, parts = population.axis[index].tolist(), population.parts[index].tolist()
    choices, begin = [], 0
    for spec, axis, count in zip(domain.graph.variables, axes, parts, strict=True):
        end = begin + count
        partition = Partition(axis, tuple(lengths[begin:end]))
        choices.append(VariableChoice(spec.name, partition, tuple(shards[begin:end])))
        begin = end
    order = ORDER_WORDS[Order(population.order[index])]
    positions = tuple(int(p) for p in population.position[rows]) if order == "explicit" else ()
    return Strategy(
        choices=tuple(choices),
        replicas=population.layouts[population.layout[index]],
        schedule=Schedule(
            order=order,  # type: ignore[arg-type]  # the table's words are the literal's
            slice_bytes=int(population.slice_bytes[index]),
            overlap_forward=bool(population.overlap[index]),
            positions=positions,
            gather="when_idle" if population.idle_gather[index] else "next_forward",
            ddp=population.ddp_arguments[population.ddp[index]],
        ),
        engine=population.engines[population.engine[index]],
        extensions=population.extensions[population.extension[index]],
    )


def _synchronizer(method: Method, server: int, group: int, option: Option) -> Synchronizer:
    match method:
        case Method.PARAMETER_SERVER:
            return ParameterServer(
                server, group, option.hierarchical, option.encoding, option.returns_gradients
            )
        case Method.ALL_REDUCE:
            return AllReduce(group, option.algorithm, option.device_order, option.encoding)
        case Method.REDUCE_SCATTER:
            return ReduceScatter(group, option.sharded_update, option.encoding)
        case Method.ALL_GATHER:
            return AllGather(group)
        case Method.FACTORS:
            return Factors(group)


def _different_variables(strategy: Strategy, names: list[str]) -> InvalidStrategy:
    given = [choice.variable for choice in strategy.choices]
    missing = [name for name in names if name not in set(given)]
    unknown = [name for name in given if name not in set(names)]
    odd = unknown or missing or ["the order of the variables"]
    problem = "unknown" if unknown else "missing" if missing else "different"
    return InvalidStrategy(
        f"the strategy has {len(given)} variables, the graph {len(names)}; {problem}: "
        f"{', '.join(odd[:3])}.",
        thing="strategy.choices",
        value=odd[0],
        remedy="This strategy belongs to another graph: rank strategies for this one.",
    )
