"""What tells plans apart by their messages: two strategies of one digest are one trial."""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from autosync.cancellation import check_cancelled
from autosync.codes import Order
from autosync.domain import Domain
from autosync.plan import PlanTable
from autosync.population import Population, encode
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.strategy import Strategy

DIGEST_BYTES = 16
CHUNK = 256
"""Strategies compiled at a time; bounds memory."""

COLUMNS = (
    "operation",
    "channel",
    "root",
    "encoding",
    "carries_values",
    "wire_bytes",
    "ready",
    "after",
    "gate",
    "update",
)


def digests_of(domain: Domain, population: Population) -> list[bytes]:
    """A digest of each strategy's messages, `DIGEST_BYTES` long, comparable within the domain.

    Equal where two strategies send the same messages in the same order: operation, ranks, bytes,
    readiness, what waits for what, for an idle wire and for which forward operation, updates, and
    the replicas' shares. How variables are cut inside of a message, and group numbers, make no
    difference.
    """
    found: list[bytes] = []
    for start in range(0, len(population), CHUNK):
        check_cancelled()
        part = population.take(np.arange(start, min(start + CHUNK, len(population))))
        found += _digests(compile_plans_fast(part, domain), part)
    return found


def digests_of_strategies(domain: Domain, strategies: Sequence[Strategy]) -> set[bytes]:
    """The distinct ones of some strategies, which may be none."""
    return set(digests_of(domain, encode(list(strategies), domain))) if strategies else set()


def _digests(plans: PlanTable, population: Population) -> list[bytes]:
    messages = _message_table(plans)
    return [
        blake2b(
            head + messages[plans.first[index] : plans.first[index + 1]].tobytes(),
            digest_size=DIGEST_BYTES,
        ).digest()
        for index, head in enumerate(_strategy_heads(population))
    ]


def _message_table(plans: PlanTable) -> NDArray[np.int64]:
    """A `(messages, 1 + len(COLUMNS))` array; teams are told by their content, since their
    numbers depend on the population."""
    teams = [
        int.from_bytes(blake2b(repr(team).encode(), digest_size=7).digest()) for team in plans.teams
    ]
    columns = [np.array(teams, dtype=np.int64)[plans.ranks]]
    columns += [getattr(plans, name).astype(np.int64) for name in COLUMNS]
    return np.ascontiguousarray(np.column_stack(columns))


def _strategy_heads(population: Population) -> list[bytes]:
    """What changes an iteration beside its messages: torch's engines, DDP's buckets, staleness,
    swapping and its budget, the replicas' shares and placed modules."""
    layouts = [repr(layout).encode() for layout in population.layouts]
    ddp = population.order == Order.DDP
    buckets = np.where(ddp, population.slice_bytes, -1)
    engines = [b"" if engine is None else repr(engine).encode() for engine in population.engines]
    placements = [repr(each).encode() if each else b"" for each in population.placements]
    return [
        layouts[layout]
        + repr((int(bucket), int(stale), int(swap))).encode()
        + (b"state" if state else b"")
        + engines[engine]
        + placements[placement]
        for layout, bucket, stale, swap, state, engine, placement in zip(
            population.layout,
            buckets,
            population.staleness,
            population.swap_bytes,
            population.swap_state,
            population.engine,
            population.placement,
            strict=True,
        )
    ]
