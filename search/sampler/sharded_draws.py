"""Random strategies under torch's `fully_shard`: which neighbouring modules form a unit, which
units keep their values from forward to backward, how far ahead they are gathered, and how many
ranks share them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.errors import InvalidInput, NotSupported
from autosync.population import Option, Population, encode
from autosync.search.space import Space
from autosync.simulator.backends import backend_of
from autosync.simulator.sharded_strategy import held_units, sharded_by
from autosync.strategy import EXACT, Encoding
from autosync.torch_engine import FullyShard, HalfName, Kept, Reshard, modules_of, unit_of_modules

MOST_DRAWS = 1024
"""Drawn in a round: each is compiled and played in plain Python, a few milliseconds."""
APART_SHARE = 0.02
"""Of the model's bytes: smaller modules beside the blocks stay in the root unit."""
PREFETCHES = (1, 1, 2, 3)
"""Units gathered ahead, drawn alike: half of the draws leave it to torch."""
HALVED = ("bf16", "fp16")

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ShardingChoices:
    """What is drawn from.

    modules: those that may be units, in the order of the forward pass. left_out bool[modules]:
    whether one may stay in the root unit, as an embedding or a head. size_bytes f64[modules]: of
    their variables. dtype i64[modules]: number of their type, of which a unit holds one. home
    i64[V]: the module of each variable, -1 in the root. shard_ranks: sizes of shard groups.
    smaller_groups: sizes of groups to which units may reshard, of those shard groups that are
    larger. prefetches: units gathered ahead. param_dtypes: types of values and of
    computation. kept: between the batches of an update; nothing where it has one.
    """

    modules: tuple[str, ...]
    left_out: NDArray[np.bool_]
    size_bytes: NDArray[np.float64]
    dtype: I64
    home: I64
    shard_ranks: tuple[int, ...]
    smaller_groups: tuple[int, ...]
    prefetches: tuple[int, ...]
    param_dtypes: tuple[HalfName | Literal[""], ...]
    encodings: tuple[Encoding, ...]
    kept: tuple[Kept, ...]

    def reshards_to(self, shard_ranks: int) -> tuple[Reshard, ...]:
        """What a unit may do after its forward in such a shard group."""
        smaller = (n for n in self.smaller_groups if n < shard_ranks and shard_ranks % n == 0)
        return (True, False, *smaller)

    def unit_of(self, engine: FullyShard) -> I64:
        """The unit of every module, `(modules + 1,)`; the last one is the root's, which is that of
        modules left out as well."""
        units = dict.fromkeys(self.modules, len(engine.units))
        units |= {name: i for i, unit in enumerate(engine.units) for name in modules_of(unit)}
        return np.array([*(units[name] for name in self.modules), len(engine.units)])


def sample_sharded(
    domain: Domain, space: Space, indices: NDArray[np.uint64], seed: int
) -> Population:
    """The proposals of these indices, in their order; each depends on (seed, index) alone.

    Raises:
        InvalidInput: `fully_shard` cannot run on the domain; says why.
    """
    choices = sharding_choices(domain, space)
    drawn = []
    for index in indices.tolist():
        rng = np.random.default_rng((seed, index))
        engine = draw_sharding(choices, rng)
        drawn.append((engine, choices.encodings[int(rng.integers(len(choices.encodings)))]))
    return sharded_population(domain, choices, drawn)


def sharded_population(
    domain: Domain, choices: ShardingChoices, chosen: Sequence[tuple[FullyShard, Encoding]]
) -> Population:
    """Strategies by their engines, made of the choices, and by the types in which gradients are
    reduced."""
    whole = FullyShard(choices.modules, choices.shard_ranks[0])
    rows = encode([sharded_by(domain, whole)], domain).take(np.zeros(len(chosen), dtype=np.int64))
    engines: dict[FullyShard | None, int] = {None: 0}
    encodings: dict[Encoding, int] = {}
    engine, option, group = [], [], []
    for each, encoding in chosen:
        engine.append(engines.setdefault(each, len(engines)))
        option.append(encodings.setdefault(encoding, len(encodings)))
        group.append(_in_order_of_appearance(choices.unit_of(each)[choices.home]))
    return replace(
        rows,
        engines=tuple(engines),
        engine=np.array(engine, dtype=np.uint16),
        options=tuple(Option(sharded_update=True, encoding=each) for each in encodings),
        option=np.repeat(np.array(option, dtype=np.uint16), len(choices.home)),
        group=np.array(group, dtype=np.int32).reshape(-1),
    )


@lru_cache(maxsize=4)
def sharding_choices(domain: Domain, space: Space) -> ShardingChoices:
    """Raises InvalidInput where `fully_shard` cannot run on the domain."""
    if sparse := next((each.name for each in domain.graph.variables if each.sparse), ""):
        raise _refused(domain, f"variable {sparse!r} has a sparse gradient")
    try:
        blocks = held_units(domain)
    except NotSupported as error:
        raise _refused(domain, error.message.rstrip("."), error.remedy) from None
    apart = _modules_apart(domain, blocks)
    table = domain.variables
    held = {
        module: [i for i, v in enumerate(domain.graph.variables) if v.name.startswith(f"{module}.")]
        for module in (*blocks, *apart)
    }
    modules = sorted(held, key=lambda module: int(table.first_use[held[module]].min()))
    home = np.full(len(domain.graph.variables), -1)
    for number, module in enumerate(modules):
        home[held[module]] = number
    dtypes = [_one_dtype(domain, module, held[module]) for module in modules]
    of_root = _one_dtype(domain, "", np.flatnonzero(home < 0).tolist())
    of_root = of_root or next((d for d, m in zip(dtypes, modules, strict=True) if m in apart), "")
    allowed = (*(each for each in space.encodings if each.name in HALVED),)
    whole = all(table.item_bytes > 2)
    return ShardingChoices(
        modules=tuple(modules),
        left_out=np.array(
            [m in apart and d == of_root for m, d in zip(modules, dtypes, strict=True)]
        ),
        size_bytes=np.array([float(table.size_bytes[held[module]].sum()) for module in modules]),
        dtype=np.unique(dtypes, return_inverse=True)[1].astype(np.int64),
        home=home,
        shard_ranks=_shard_ranks(domain),
        smaller_groups=_ranks_of_nodes(domain),
        prefetches=(1,) if backend_of(domain.cluster).starts_on_host else PREFETCHES,
        param_dtypes=("", *(_half_name(each) for each in allowed if whole)),
        encodings=(EXACT, *allowed),
        kept=get_args(Kept) if domain.accumulate > 1 else ("",),
    )


def _one_dtype(domain: Domain, module: str, held: Sequence[int]) -> str:
    """The type of these variables of a module; empty where there are none. module: empty for the
    root. Raises InvalidInput where they have several: torch reduces a unit in one type."""
    found = sorted({domain.graph.variables[index].dtype for index in held})
    if len(found) > 1:
        where = f"module {module!r}" if module else "the root unit"
        raise _refused(domain, f"{where} holds {' and '.join(found)}")
    return found[0] if found else ""


def _half_name(encoding: Encoding) -> HalfName:
    return "bf16" if encoding.name == "bf16" else "fp16"


def _refused(domain: Domain, why: str, remedy: str = "") -> InvalidInput:
    return InvalidInput(
        f"space fsdp2: {why}, so there is no strategy of torch's fully_shard.",
        thing="graph",
        value=domain.graph.name,
        remedy=remedy or "Leave the space out.",
    )


def _modules_apart(domain: Domain, blocks: Sequence[str]) -> tuple[str, ...]:
    """Large modules beside the blocks, such as embeddings and heads, that read their own variables
    alone, which nothing else reads: `fully_shard` cannot part tied ones."""
    variables = domain.graph.variables
    found: dict[str, float] = {}
    for variable in variables:
        module = variable.name.rpartition(".")[0]
        if module and not any(f"{module}.".startswith(f"{block}.") for block in blocks):
            found[module] = found.get(module, 0.0) + variable.size_bytes
    readers: dict[str, set[str]] = {}
    for operation in domain.graph.operations:
        for index in operation.variables:
            owner = variables[index].name.rpartition(".")[0]
            readers.setdefault(owner, set()).add(operation.name.rpartition(".")[0])
    least = APART_SHARE * domain.graph.size_bytes
    return tuple(
        module
        for module, size_bytes in found.items()
        if size_bytes >= least
        and [owner for owner, others in readers.items() if module in others] == [module]
        and readers[module] == {module}
        and not any(each.startswith(f"{module}.") for each in (*blocks, *found))
    )


def _shard_ranks(domain: Domain) -> tuple[int, ...]:
    """All ranks; where nodes have as many ranks each, also those of a node, and divisors of either
    that keep a shard group within a node or make it of whole ones."""
    world = domain.world_size
    counts = {node.ranks for node in domain.cluster.nodes if node.ranks}
    if len(counts) > 1:
        return (world,)
    of_node = counts.pop()
    sizes = [ranks for ranks in range(2, world) if world % ranks == 0]
    return (world, *(ranks for ranks in sizes if ranks % of_node == 0 or of_node % ranks == 0))


def _ranks_of_nodes(domain: Domain) -> tuple[int, ...]:
    """The ranks of a node, where nodes have as many each, and several."""
    counts = {node.ranks for node in domain.cluster.nodes if node.ranks}
    return tuple(counts) if len(counts) == 1 and min(counts) > 1 else ()


def draw_sharding(choices: ShardingChoices, rng: np.random.Generator) -> FullyShard:
    own = np.flatnonzero(~choices.left_out | (rng.random(len(choices.modules)) < 0.5))
    between_types = np.flatnonzero(np.diff(choices.dtype[own])) + 1
    cuts = np.union1d(_cuts(choices.size_bytes[own], rng), between_types)
    parts = np.split(own, cuts)
    units = tuple(unit_of_modules([choices.modules[each] for each in part]) for part in parts)
    shard_ranks = _one_of(choices.shard_ranks, rng)
    return FullyShard(
        units,
        shard_ranks,
        _resharding(len(units), choices.reshards_to(shard_ranks)[2:], rng),
        _one_of(choices.prefetches, rng),
        _one_of(choices.prefetches, rng),
        choices.param_dtypes[int(rng.integers(len(choices.param_dtypes)))],
        choices.kept[int(rng.integers(len(choices.kept)))],
    )


def _cuts(size_bytes: NDArray[np.float64], rng: np.random.Generator) -> I64:
    """Between which neighbours units end: in two draws of five between all, else so that units are
    about as large as each other, or anywhere."""
    count = len(size_bytes)
    way = rng.random()
    if way < 0.4 or count == 1:
        return np.arange(1, count)
    units = round(count ** rng.random())
    if way < 0.7:
        middles = np.cumsum(size_bytes) - size_bytes / 2
        parts = np.minimum(middles / size_bytes.sum() * units, units - 1).astype(np.int64)
        return np.flatnonzero(np.diff(parts)) + 1
    return np.sort(rng.choice(np.arange(1, count), min(units, count) - 1, replace=False))


def _resharding(
    units: int, smaller: Sequence[int], rng: np.random.Generator
) -> tuple[Reshard, ...]:
    """Of all units, of none, of all but the last ones, whose values are held for the shortest time,
    or of any. smaller: groups to which those that reshard do it as well: all of them, all but the
    first ones, or none, in a draw of three each."""
    way = rng.random()
    if way < 0.4:
        given = np.full(units, way < 0.25)
    elif way < 0.8:
        given = np.arange(units) < rng.integers(units + 1)
    else:
        given = rng.random(units) < rng.random()
    values: list[Reshard] = given.tolist()
    if not smaller:
        return tuple(values)
    ranks = _one_of(smaller, rng)
    first = (0, int(rng.integers(units)), units)[int(rng.integers(3))]
    return tuple(ranks if i >= first and value else value for i, value in enumerate(values))


def _one_of(options: Sequence[int], rng: np.random.Generator) -> int:
    return options[int(rng.integers(len(options)))]


def _in_order_of_appearance(groups: NDArray[Any]) -> I64:
    """The same groups, numbered by the first of each."""
    _, first, number = np.unique(groups, return_index=True, return_inverse=True)
    order = np.empty(len(first), dtype=np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    renumbered: I64 = order[number]
    return renumbered
