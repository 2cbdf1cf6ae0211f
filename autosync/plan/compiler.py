"""The only compiler: strategies to messages."""

from collections.abc import Callable

import numpy as np

from autosync.domain import Domain
from autosync.extensions.placement.document import Placement
from autosync.extensions.placement.placed_messages import with_placed_messages
from autosync.plan.compiler_arrays import (
    FIRST_SERVER,
    DomainArrays,
    PlanArrays,
    PopulationArrays,
    Scratch,
    domain_arrays,
    population_arrays,
    team_table,
)
from autosync.plan.compiler_kernels import STAGES
from autosync.plan.compiler_loop import compile_loop
from autosync.plan.plan_table import PlanTable
from autosync.plan.sharded_messages import with_sharded_messages
from autosync.population import Population

Loop = Callable[[DomainArrays, PopulationArrays, int, PlanArrays, Scratch], None]


def compile_plans(population: Population, domain: Domain, loop: Loop = compile_loop) -> PlanTable:
    """The plans of a population of verified strategies.

    loop: `compile_loop` itself, or the same function compiled (`simulator/numba_compiler.py`).
    """
    arrays = domain_arrays(domain)
    columns = population_arrays(population)
    out, work = _allocate(population, arrays)
    loop(arrays, columns, FIRST_SERVER + domain.cluster.servers, out, work)
    messages = int(out.first[-1])
    buckets = int(out.bucket[:messages].max()) + 1 if messages else 0
    pieces = int(out.bucket_first[buckets])
    plans = PlanTable(
        teams=team_table(domain, population.options),
        first=out.first,
        operation=out.operation[:messages],
        channel=out.channel[:messages],
        root=out.root[:messages],
        ranks=out.ranks[:messages],
        encoding=out.encoding[:messages],
        carries_values=out.carries_values[:messages],
        wire_bytes=out.wire_bytes[:messages],
        ready=out.ready[:messages],
        after=out.after[:messages],
        gate=out.gate[:messages],
        before=np.full(messages, -1, dtype=np.int32),
        update=out.update[:messages],
        bucket=out.bucket[:messages],
        bucket_first=out.bucket_first[: buckets + 1],
        piece_row=out.piece_row[:pieces],
        piece_start=out.piece_start[:pieces],
        piece_stop=out.piece_stop[:pieces],
    )
    if population.engine.any():
        plans = with_sharded_messages(plans, population, domain)
    if population.carrying(Placement).any():
        plans = with_placed_messages(plans, population, domain)
    return plans


def _allocate(population: Population, domain: DomainArrays) -> tuple[PlanArrays, Scratch]:
    """Room for the most messages that can come out; pages that stay unused cost nothing."""
    if len(population):
        groups = np.maximum.reduceat(population.group, population.first[:-1]).astype(np.int64) + 1
    else:
        groups = np.zeros(0, dtype=np.int64)
    item_bytes = int(domain.item_bytes.min())
    total_bytes = int((domain.elements * domain.item_bytes).sum())
    slice_bytes = np.maximum(population.slice_bytes // item_bytes * item_bytes, item_bytes)
    slices = np.where(population.slice_bytes > 0, total_bytes // slice_bytes + 1, 0)
    buckets = groups + slices
    most_rows = int(np.diff(population.first).max(initial=0))
    columns = _columns(len(population), int(buckets.sum()), population.rows + int(slices.sum()))
    return columns, _scratch(most_rows, len(domain.elements), int(buckets.max(initial=0)))


def _columns(strategies: int, buckets: int, pieces: int) -> PlanArrays:
    """Columns for that many strategies, and for at most so many buckets and pieces."""
    messages = buckets * STAGES
    return PlanArrays(
        first=np.zeros(strategies + 1, dtype=np.int64),
        operation=np.empty(messages, dtype=np.uint8),
        channel=np.empty(messages, dtype=np.uint8),
        root=np.empty(messages, dtype=np.int16),
        ranks=np.empty(messages, dtype=np.uint16),
        encoding=np.empty(messages, dtype=np.uint8),
        carries_values=np.empty(messages, dtype=np.bool_),
        wire_bytes=np.empty(messages, dtype=np.int64),
        ready=np.empty(messages, dtype=np.int32),
        after=np.empty(messages, dtype=np.int64),
        gate=np.empty(messages, dtype=np.int32),
        update=np.empty(messages, dtype=np.uint8),
        bucket=np.empty(messages, dtype=np.int64),
        bucket_first=np.zeros(buckets + 1, dtype=np.int64),
        piece_row=np.empty(pieces, dtype=np.int64),
        piece_start=np.empty(pieces, dtype=np.int64),
        piece_stop=np.empty(pieces, dtype=np.int64),
    )


def _scratch(rows: int, variables: int, buckets: int) -> Scratch:
    """Working arrays for at most so many rows and buckets of one strategy."""
    row, wire, value, second, ready, gate, key, order, by_key, heap, last = (
        np.empty(buckets, dtype=np.int64) for _ in range(11)
    )
    return Scratch(
        np.empty(rows + 2, dtype=np.int64),
        np.empty(variables, dtype=np.int64),
        np.empty(rows, dtype=np.int64),
        row,
        wire,
        value,
        second,
        ready,
        gate,
        key,
        order,
        by_key,
        heap,
        last,
        np.empty(2 * buckets, dtype=np.int64),
        np.empty(buckets),
        np.empty(buckets),
        np.zeros((STAGES, 6), dtype=np.int32),
    )
