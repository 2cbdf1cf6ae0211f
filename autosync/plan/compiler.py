"""The only compiler: strategies to messages."""

from collections.abc import Callable

import numpy as np

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
from autosync.plan.plan_table import MESSAGE_COLUMNS, PlanTable, team_table
from autosync.plan.sharded_messages import with_sharded_messages
from autosync.population import Population

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
