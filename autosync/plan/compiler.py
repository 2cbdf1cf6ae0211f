"""The only compiler: strategies to messages, those that torch's `fully_shard` sends included."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.codes import ENCODINGS, Channel, Op, Update
from autosync.domain import Domain
from autosync.extensions.registry import EXTENSIONS, part_of
from autosync.plan.compiler_arrays import (
    DomainArrays,
    PlanArrays,
    PopulationArrays,
    Scratch,
    allocate,
    domain_arrays,
    population_arrays,
)
from autosync.plan.message_chains import compile_loop
from autosync.plan.plan_table import ALL_RANKS, MESSAGE_COLUMNS, PlanTable, Teams, team_table
from autosync.population import Population
from autosync.torch_engine import FullyShard

Loop = Callable[[DomainArrays, PopulationArrays, PlanArrays, Scratch], None]


def compile_plans(population: Population, domain: Domain, loop: Loop = compile_loop) -> PlanTable:
    """The plans of a population of verified strategies.

    loop: `compile_loop` itself, or the same function compiled (`simulator/numba_compiler.py`).
    """
    arrays = domain_arrays(domain)
    out, work = allocate(population, arrays)
    loop(arrays, population_arrays(population, domain), out, work)
    messages = int(out.first[-1])
    buckets = int(out.bucket[:messages].max()) + 1 if messages else 0
    pieces = int(out.bucket_first[buckets])
    columns = {name: getattr(out, name)[:messages] for name in MESSAGE_COLUMNS if name != "before"}
    plans = PlanTable(
        teams=team_table(domain, population.options),
        first=out.first,
        before=np.full(messages, -1, dtype=np.int32),
        bucket_first=out.bucket_first[: buckets + 1],
        piece_row=out.piece_row[:pieces],
        piece_start=out.piece_start[:pieces],
        piece_stop=out.piece_stop[:pieces],
        **columns,
    )
    if population.engine.any():
        plans = with_sharded_messages(plans, population, domain)
    for key, extension in EXTENSIONS.items():
        if extension.has_messages and population.carrying(extension.document).any():
            plans = part_of(key, "messages").with_messages(plans, population, domain)
    return plans


Row = dict[str, Any]
"""A message by its columns."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """A bucket of a sharded strategy. reduce, gather: its messages. first: the first gradient
    after its backward begins, by its place in the order in which they get ready. again_over: see
    `FullyShard.gathers_again_over`. half_share: bytes of its values in two bytes each, over those
    in their own types."""

    reduce: Row
    gather: Row
    first: int
    again_over: int
    half_share: float


@dataclass(frozen=True, slots=True)
class _ShardTeams:
    """Teams of a sharded strategy, by their indices. groups: the shard groups. replicas: the ranks
    that hold the same part; -1 where each part is held once. again: by the number of ranks among
    which values are gathered for backward."""

    groups: int
    replicas: int
    again: dict[int, int]


def with_sharded_messages(plans: PlanTable, population: Population, domain: Domain) -> PlanTable:
    """The same plans, those of strategies under `fully_shard` with all that it sends.

    First the backward pass, unit by unit: the gather for it where the values were given back, the
    reduce-scatter, the all-reduce between shard groups where there are several. Then the gathers
    for the next forward pass, in its order.
    """
    added: dict[Teams, int] = {}
    parts: list[dict[str, NDArray[Any]]] = []
    for index in range(len(plans)):
        engine = population.engines[population.engine[index]]
        if engine is None:
            rows = slice(int(plans.first[index]), int(plans.first[index + 1]))
            parts.append({name: getattr(plans, name)[rows] for name in MESSAGE_COLUMNS})
        else:
            units = _units(plans, population, domain, index, engine)
            messages = _messages(units, engine, _teams_of(plans, added, domain, engine))
            parts.append(
                {
                    name: np.array([row[name] for row in messages], dtype=dtype)
                    for name, dtype in MESSAGE_COLUMNS.items()
                }
            )
    counts = [len(part["operation"]) for part in parts]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in MESSAGE_COLUMNS}
    first = np.concatenate(([0], np.cumsum(counts)))
    return replace(plans, teams=plans.teams.with_added(added), first=first, **joined)


def _teams_of(
    plans: PlanTable, added: dict[Teams, int], domain: Domain, engine: FullyShard
) -> _ShardTeams:
    """added: teams by their indices, which follow those of the plans; new ones are put there."""
    world = domain.world_size

    def groups_of(ranks: int) -> int:
        if ranks == world:
            return ALL_RANKS
        teams = tuple(tuple(range(start, start + ranks)) for start in range(0, world, ranks))
        return added.setdefault(teams, len(plans.teams) + len(added))

    groups, replicas = groups_of(engine.shard_ranks), -1
    if engine.shard_ranks < world:
        alike = tuple(
            tuple(range(one, world, engine.shard_ranks)) for one in range(engine.shard_ranks)
        )
        replicas = added.setdefault(alike, len(plans.teams) + len(added))
    again = {ranks: groups_of(ranks) for ranks in engine.smaller_groups}
    return _ShardTeams(groups, replicas, again | {engine.shard_ranks: groups})


def _units(
    plans: PlanTable, population: Population, domain: Domain, index: int, engine: FullyShard
) -> list[_Unit]:
    """In the order of their backward passes, of which the root's, the last unit, begins first."""
    reduces: dict[int, Row] = {}
    gathers: dict[int, Row] = {}
    for message in range(int(plans.first[index]), int(plans.first[index + 1])):
        row = {name: getattr(plans, name)[message] for name in MESSAGE_COLUMNS}
        of_bucket = reduces if row["operation"] == Op.REDUCE_SCATTER else gathers
        of_bucket[int(row["bucket"])] = row
    found = []
    for bucket, reduce in reduces.items():
        pieces = slice(int(plans.bucket_first[bucket]), int(plans.bucket_first[bucket + 1]))
        held = population.variable[plans.piece_row[pieces] + int(population.first[index])]
        number = engine.unit_of(domain.graph.variables[int(held[0])].name)
        first = int(domain.variables.ready[held].min())
        is_root = number == len(engine.units)
        if is_root:  # the model itself, around everything in it
            gathers[bucket]["gate"] = first = 0
        table = domain.variables
        half_share = 2 * int(table.elements[held].sum()) / int(table.size_bytes[held].sum())
        again_over = engine.gathers_again_over(number)
        unit = _Unit(reduce, gathers[bucket], first, again_over, half_share)
        found.append(((first, not is_root), unit))
    return [unit for _, unit in sorted(found, key=lambda each: each[0])]


def _messages(units: list[_Unit], engine: FullyShard, teams: _ShardTeams) -> list[Row]:
    found: list[Row] = []
    gathers: list[Row] = []
    packed: Row = {"encoding": ENCODINGS.index(engine.param_dtype)} if engine.param_dtype else {}
    shard_ranks = engine.shard_ranks
    for place, unit in enumerate(units):
        gather = unit.gather | packed
        if packed:
            gather["wire_bytes"] = round(int(gather["wire_bytes"]) * unit.half_share)
        if unit.again_over:
            asker = units[max(0, place - engine.backward_prefetch)]
            again = {"ready": asker.first - 1, "after": -1, "gate": -1, "before": unit.first}
            found.append(gather | again | {"ranks": teams.again[unit.again_over]})
        found.append(unit.reduce | {"ranks": teams.groups, "gate": -1})
        if teams.replicas >= 0:
            found[-1]["update"] = Update.NONE
            part = -(-int(unit.reduce["wire_bytes"]) // shard_ranks)
            found.append(_crossing(unit.reduce, part, len(found) - 1, teams.replicas))
        gathers.append(gather | {"ranks": teams.groups, "after": len(found) - 1})
    return found + sorted(gathers, key=lambda row: int(row["gate"]))


def _crossing(reduce: Row, size_bytes: int, after: int, replicas: int) -> Row:
    """The all-reduce of what each rank of a shard group holds after message `after`."""
    sends: Row = {"operation": Op.ALL_REDUCE, "channel": Channel.LOCAL_REDUCE, "ranks": replicas}
    sends |= {"wire_bytes": size_bytes}
    return reduce | sends | {"ready": -1, "after": after, "gate": -1, "update": Update.SHARD}
