"""What tells plans apart by their messages: two strategies of one digest are one trial."""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from autosync.codes import Order
from autosync.plan.plan_table import PlanTable
from autosync.population import Population

DIGEST_BYTES = 16

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


def message_digests(plans: PlanTable, population: Population) -> list[bytes]:
    """A digest of each strategy's messages, `DIGEST_BYTES` long.

    Equal where two strategies send the same messages in the same order: operation, ranks, bytes,
    readiness, what waits for what and for which forward operation, updates, and the replicas'
    shares. How variables are cut inside of a message, and group numbers, make no difference.
    Comparable between populations of one domain.
    """
    messages = _message_table(plans)
    heads = _strategy_heads(population)
    return [
        blake2b(
            head + messages[plans.first[index] : plans.first[index + 1]].tobytes(),
            digest_size=DIGEST_BYTES,
        ).digest()
        for index, head in enumerate(heads)
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
    """What changes an iteration beside its messages: DDP's engine and its buckets, staleness and
    the replicas' shares."""
    layouts = [repr(layout).encode() for layout in population.layouts]
    ddp = population.order == Order.DDP
    buckets = np.where(ddp, population.slice_bytes, -1)
    return [
        layouts[layout] + repr((int(bucket), int(stale))).encode()
        for layout, bucket, stale in zip(
            population.layout, buckets, population.staleness, strict=True
        )
    ]
