"""Neighbours of strategies under torch's `fully_shard`: each differs from a measured one by a
single choice. There are few, so all of them are made."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from autosync.domain import Domain
from autosync.population import Population
from autosync.search.sampler.sharded_draws import (
    ShardingChoices,
    sharded_population,
    sharding_choices,
)
from autosync.search.space import Space
from autosync.strategy import EXACT, Encoding
from autosync.torch_engine import (
    MOST_PREFETCHED,
    FullyShard,
    Reshard,
    Unit,
    modules_of,
    unit_of_modules,
)

Sharding = tuple[FullyShard, Encoding]
"""An engine, and the type in which gradients are reduced."""


def sharded_neighbours(
    domain: Domain, space: Space, measured: Population, count: int
) -> Population:
    """At most `count` neighbours of strategies under `fully_shard`, no two alike; the fastest has
    all of its own first.

    space: of shardings (`only` is `fsdp2`). measured: the fastest first.

    Raises:
        InvalidInput: `fully_shard` cannot run on the domain; says why.
    """
    choices = sharding_choices(domain, space)
    found: dict[Sharding, None] = {}
    for sharding in shardings_of(measured):
        if set(choices.modules).issuperset(_names(sharding[0].units)):
            found |= dict.fromkeys(neighbours_of_sharding(sharding, choices))
    return sharded_population(domain, choices, list(found)[:count])


def shardings_of(population: Population) -> Iterator[Sharding]:
    """Of strategies that all run under `fully_shard`."""
    for code, row in zip(population.engine, population.first, strict=False):
        engine = population.engines[code]
        assert engine is not None
        yield engine, population.options[population.option[row]].encoding


def neighbours_of_sharding(sharding: Sharding, choices: ShardingChoices) -> Iterator[Sharding]:
    """All that differ from it by one choice."""
    engine, encoding = sharding
    for other in _other_engines(engine, choices):
        yield other, encoding
    for packed in choices.encodings:
        if packed != encoding and EXACT in (packed, encoding):
            yield engine, packed


def _other_engines(engine: FullyShard, choices: ShardingChoices) -> Iterator[FullyShard]:
    yield from _other_units(engine, choices)
    values = engine.resharding
    for unit, present in enumerate(values):
        for value in choices.reshards_to(engine.shard_ranks):
            if value != present:
                each = (*values[:unit], value, *values[unit + 1 :])
                yield replace(engine, reshard_after_forward=each)
    if len(choices.prefetches) > 1:
        for name in ("forward_prefetch", "backward_prefetch"):
            for depth in (getattr(engine, name) - 1, getattr(engine, name) + 1):
                if 1 <= depth <= MOST_PREFETCHED:
                    yield replace(engine, **{name: depth})
    for name in choices.param_dtypes:
        if name != engine.param_dtype and "" in (name, engine.param_dtype):
            yield replace(engine, param_dtype=name)
    for whole in choices.kept:
        if whole != engine.kept_between_batches:
            yield replace(engine, kept_between_batches=whole)
    for ranks in choices.shard_ranks:
        if ranks != engine.shard_ranks:
            allowed = choices.reshards_to(ranks)
            kept = tuple(value if value in allowed else True for value in values)
            yield replace(engine, shard_ranks=ranks, reshard_after_forward=kept)


def _other_units(engine: FullyShard, choices: ShardingChoices) -> Iterator[FullyShard]:
    """Two neighbours of one type merged, one unit split, and a large module beside the blocks given
    a unit of its own, or back to the root."""
    units, values = engine.units, engine.resharding

    def with_units(first: int, stop: int, instead: Sequence[Unit], reshards: Reshard) -> FullyShard:
        made = (*units[:first], *instead, *units[stop:])
        each = (*values[:first], *(reshards for _ in instead), *values[stop:])
        return replace(engine, units=made, reshard_after_forward=each)

    place = {name: number for number, name in enumerate(choices.modules)}
    for unit, (one, other) in enumerate(pairwise(units)):
        both = [*modules_of(one), *modules_of(other)]
        if len({int(choices.dtype[place[name]]) for name in both}) == 1:
            joined = unit_of_modules(both)
            yield with_units(unit, unit + 2, [joined], values[unit] or values[unit + 1])
    for unit, names in enumerate(map(modules_of, units)):
        for cut in range(1, len(names)):
            parts = [unit_of_modules(names[:cut]), unit_of_modules(names[cut:])]
            yield with_units(unit, unit + 1, parts, values[unit])
        for name in names:
            rest = [each for each in names if each != name]
            if choices.left_out[place[name]] and len(units) + len(rest) > 1:
                yield with_units(unit, unit + 1, [unit_of_modules(rest)] * bool(rest), values[unit])
    held = {name: unit for unit, names in enumerate(map(modules_of, units)) for name in names}
    for number in np.flatnonzero(choices.left_out).tolist():
        if (name := choices.modules[number]) not in held:
            before = [held[each] for each in choices.modules[:number] if each in held]
            unit = max(before, default=-1) + 1
            yield with_units(unit, unit, [name], True)


def _names(units: Sequence[Unit]) -> set[str]:
    return {name for unit in units for name in modules_of(unit)}
