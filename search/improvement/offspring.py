"""Strategies made of parents: kernels put together."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autosync.cancellation import in_order
from autosync.population import Population, concatenate
from autosync.search.improvement.constraint_repair import form_groups, release_excess
from autosync.search.improvement.crossover_mutation import Lineage, choose_sources, fill_offspring
from autosync.search.improvement.edited_columns import columns_of
from autosync.search.improvement.method_switches import forms_among
from autosync.search.improvement.owner_links import owner_links
from autosync.search.improvement.parent_columns import ParentPool, columns_among
from autosync.search.improvement.small_edits import KIND_OF_EDIT, edit_slightly
from autosync.search.sampler.drawn_columns import ShardColumns, empty_choices, empty_shards
from autosync.search.sampler.lagging_draws import kept_staleness
from autosync.search.sampler.load_balance import balance_load

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Predict = Callable[[Population], F64]
"""Seconds of each strategy; lower is better."""

CHUNK = 512
"""Children made and judged at a time, as many as the ranking of samples takes."""


def make_offspring(pool: ParentPool, lineage: Lineage, start: int, seed: int) -> Population:
    """The children of a lineage. Child i depends only on its lineage and on (seed, start + i).
    Releases the GIL while it works.

    They keep the pins, the staleness of their base where they can lag, and both constraints but for
    one that the space switches off. Groups of a family (collectives, or one server) are no more
    than the larger of the space's `max_groups` and the groups of base and mate.
    """
    tables, given, n = pool.tables, pool.population, len(lineage.base)
    key, indices = np.uint64(seed), np.arange(start, start + n, dtype=np.uint64)
    source = np.empty((n, len(tables.variables)), dtype=np.int32)
    choose_sources(tables.ready_order, key, indices, lineage, source)
    choices = empty_choices(n, len(tables.variables))
    places = source, np.arange(len(tables.variables))
    choices.axis[:], choices.parts[:] = given.axis[places], given.parts[places]
    for name in ("layout", "order", "slice_bytes", "overlap", "idle_gather"):
        getattr(choices, name)[:] = getattr(given, name)[lineage.base]
    shards = empty_shards(choices.parts)
    starts = np.empty(len(shards.variable), dtype=np.bool_)
    position = np.empty(len(shards.variable), dtype=np.int32)
    fill_offspring(
        tables, key, indices, lineage, pool.columns, source, choices, shards, starts, position
    )
    release_excess(tables, choices.axis, shards)
    balance_load(tables, key, indices, choices.axis, shards)
    of_mate = np.where(lineage.mate >= 0, pool.groups[lineage.mate], 0)
    most = np.maximum(pool.groups[lineage.base], of_mate)
    most = np.maximum(most, tables.rules[0]["max_groups"])
    form_groups(tables, len(given.options), choices.parts, starts, most, shards)
    made = Population(
        layouts=given.layouts,
        options=given.options,
        engines=(None,),
        placements=((),),
        layout=choices.layout,
        engine=np.zeros(n, dtype=np.uint8),
        placement=np.zeros(n, dtype=np.uint16),
        order=choices.order,
        slice_bytes=choices.slice_bytes,
        overlap=choices.overlap,
        idle_gather=choices.idle_gather,
        staleness=given.staleness[lineage.base],
        swap_bytes=given.swap_bytes[lineage.base],
        swap_state=given.swap_state[lineage.base],
        swap_values=given.swap_values[lineage.base],
        axis=choices.axis,
        parts=choices.parts,
        position=position,
        **shards._asdict(),
    )
    return replace(made, staleness=kept_staleness(made))


def make_edited(
    pool: ParentPool,
    base: I64,
    edits: I64,
    start: int,
    seed: int,
    kinds: I64 = KIND_OF_EDIT,
) -> Population:
    """Copies of the parents `base` i64[n], each after so many small edits (`small_edits`). Child i
    depends only on these and on (seed, start + i). Releases the GIL while it works.

    Pins, cuts, and the groups' constraint are kept; owners stay where they are, but for those that
    an edit moves.
    """
    tables, n = pool.tables, len(base)
    made = pool.population.take(base)
    indices = np.arange(start, start + n, dtype=np.uint64)
    links, forms = owner_links(pool.domain), forms_among(made.options, pool.inputs)
    edit_slightly(tables, links, forms, np.uint64(seed), indices, edits, kinds, columns_of(made))
    starts = columns_among(tables, made).starts
    most = np.maximum(pool.groups[base] + edits, tables.rules[0]["max_groups"])
    shards = ShardColumns(*(getattr(made, name) for name in ShardColumns._fields))
    form_groups(tables, len(made.options), made.parts, starts, most, shards)
    return replace(made, staleness=kept_staleness(made))


def judged_edited(
    pool: ParentPool, base: I64, edits: I64, seed: int, predict: Predict, keep: int, threads: int
) -> Iterator[tuple[Population, F64]]:
    """As `judged_offspring`, of children by small edits."""

    def chunk(start: int) -> tuple[Population, F64]:
        part = slice(start, start + CHUNK)
        children = make_edited(pool, base[part], edits[part], start, seed)
        return fastest(children, predict(children), keep)

    yield from in_order(threads, chunk, range(0, len(base), CHUNK))


def judged_offspring(
    pool: ParentPool, lineage: Lineage, seed: int, predict: Predict, keep: int, threads: int
) -> Iterator[tuple[Population, F64]]:
    """The best `keep` of each chunk of the children with their seconds, chunk by chunk; they do not
    depend on `threads`. Raises Cancelled between chunks."""

    def chunk(start: int) -> tuple[Population, F64]:
        part = Lineage(*(column[start : start + CHUNK] for column in lineage))
        children = make_offspring(pool, part, start, seed)
        return fastest(children, predict(children), keep)

    yield from in_order(threads, chunk, range(0, len(lineage.base), CHUNK))


def fastest(population: Population, seconds: F64, keep: int) -> tuple[Population, F64]:
    """The `keep` fastest, fastest first, of equal seconds the first one: their messages are mostly
    equal, too. What cannot run (infinite or NaN) is left out."""
    order = np.argsort(seconds, kind="stable")
    order = order[np.isfinite(seconds[order])]
    new = np.concatenate(([True], np.diff(seconds[order]) > 0))[: len(order)]
    best = order[new][:keep]
    return population.take(best), seconds[best]


def joined(parts: list[tuple[Population, F64]]) -> tuple[Population, F64]:
    return concatenate([each for each, _ in parts]), np.concatenate([s for _, s in parts])
