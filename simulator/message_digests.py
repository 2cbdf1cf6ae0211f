"""What tells plans apart by their messages: two strategies of one digest are one trial."""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from autosync.cancellation import in_order
from autosync.codes import Order
from autosync.domain import Domain
from autosync.plan import PlanTable
from autosync.population import Population, encode
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.strategy import Strategy

DIGEST_BYTES = 16
CHUNK = 256
"""Strategies compiled at a time; bounds memory."""
THREADS = 2
"""That compile them and hash their messages: neither needs the interpreter."""

COLUMNS = {
    "wire_bytes": np.int64,
    "after": np.int64,
    "ready": np.int32,
    "gate": np.int32,
    "root": np.int16,
    "operation": np.uint8,
    "channel": np.uint8,
    "encoding": np.uint8,
    "carries_values": np.bool_,
    "update": np.uint8,
}
"""Of a PlanTable."""
MESSAGE = np.dtype([("teams", np.uint64), *COLUMNS.items()])
"""A message as it is hashed, without gaps."""


def digests_of(domain: Domain, population: Population) -> list[bytes]:
    """A digest of each strategy's messages, `DIGEST_BYTES` long, comparable within the domain.

    Equal where two strategies send the same messages in the same order: operation, ranks, bytes,
    readiness, what waits for what, for an idle wire and for which forward operation, updates, and
    the replicas' shares. How variables are cut inside of a message, and group numbers, make no
    difference. Raises Cancelled between chunks.
    """

    def chunk(start: int) -> list[bytes]:
        part = population.between(start, min(start + CHUNK, len(population)))
        return _digests(compile_plans_fast(part, domain), part)

    starts = range(0, len(population), CHUNK)
    return [digest for digests in in_order(THREADS, chunk, starts) for digest in digests]


def digests_of_strategies(domain: Domain, strategies: Sequence[Strategy]) -> set[bytes]:
    """The distinct ones of some strategies, which may be none."""
    return set(digests_of(domain, encode(list(strategies), domain))) if strategies else set()


def _digests(plans: PlanTable, population: Population) -> list[bytes]:
    messages = _message_table(plans).view(np.uint8)
    first = plans.first * MESSAGE.itemsize
    found = []
    for index, head in enumerate(_strategy_heads(population)):
        digest = blake2b(head, digest_size=DIGEST_BYTES)
        digest.update(messages[first[index] : first[index + 1]].data)
        found.append(digest.digest())
    return found


def _message_table(plans: PlanTable) -> NDArray[np.void]:
    """A `(messages,)` array of MESSAGE; teams are told by their content, since their numbers depend
    on the population."""
    used, place = np.unique(plans.ranks, return_inverse=True)
    told = (repr(plans.teams[index]).encode() for index in used.tolist())
    teams = [int.from_bytes(blake2b(each, digest_size=8).digest()) for each in told]
    table = np.empty(plans.messages, dtype=MESSAGE)
    table["teams"] = np.array(teams, dtype=np.uint64)[place]
    for name in COLUMNS:
        table[name] = getattr(plans, name)
    return table


def _strategy_heads(population: Population) -> list[bytes]:
    """What changes an iteration beside its messages: torch's engines, DDP's buckets, the
    replicas' shares and what is carried of extensions."""
    layouts = [repr(layout).encode() for layout in population.layouts]
    buckets = np.where(population.order == Order.DDP, population.slice_bytes, -1)
    ddps, engines = (
        [b"" if each is None else repr(each).encode() for each in table]
        for table in (population.ddp_arguments, population.engines)
    )
    carried = [repr(each).encode() for each in population.extensions]
    return [
        b"".join((layouts[layout], b"%d" % bucket, ddps[ddp], engines[engine], carried[entry]))
        for layout, bucket, ddp, engine, entry in zip(
            population.layout,
            buckets,
            population.ddp,
            population.engine,
            population.extension,
            strict=True,
        )
    ]
