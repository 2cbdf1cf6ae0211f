"""Proposals whose compiled messages are equal are one proposal."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.plan.message_digests import message_digests
from autosync.population import Population
from autosync.simulator.numba_compiler import compile_plans_fast

CHUNK = 256
"""Strategies compiled at a time; bounds memory."""


def digests_of(domain: Domain, population: Population) -> list[bytes]:
    """A digest of each strategy's messages, comparable within the domain."""
    found: list[bytes] = []
    for start in range(0, len(population), CHUNK):
        part = population.take(np.arange(start, min(start + CHUNK, len(population))))
        found += message_digests(compile_plans_fast(part, domain), part)
    return found


def distinct_rows(
    domain: Domain, population: Population, known: Collection[bytes] = ()
) -> NDArray[np.int64]:
    """Indices of the strategies whose messages are neither known nor those of an earlier one.

    known: digests, as of `digests_of`.
    """
    taken = set(known)
    rows = []
    for index, digest in enumerate(digests_of(domain, population)):
        if digest not in taken:
            taken.add(digest)
            rows.append(index)
    return np.array(rows, dtype=np.int64)
