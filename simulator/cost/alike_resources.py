"""Which rows of a table are equal, and which resources and servers of a cluster are alike.

Of hundreds of equal nodes one tells what all do. Servers and resources are parted so that servers
of a class load each class of resources alike, and resources of a class are loaded alike by each
class of servers: a linear program over them has the same optimum over the classes (Grohe, Kersting,
Mladenov and Selman, "Dimension reduction via colour refinement", 2014).
"""

from dataclasses import dataclass
from hashlib import blake2b
from itertools import count

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

DECIMALS = 9
"""Loads that differ by less of the largest one are equal: sums differ in their last digits."""


@dataclass(frozen=True, slots=True)
class AlikeLoads:
    """Loads over G classes of servers and C classes of resources, seconds per byte.

    plain f64[P, C]: of kinds without a server. owned: for each operation of a server `(G, C)`.
    Each is the mean over the resources of a class.
    """

    plain: F64
    owned: tuple[F64, ...]


def alike_loads(plain: F64, owned: list[F64]) -> AlikeLoads:
    """plain `(P, R)` and, for each operation of a server, `(S, R)` seconds per byte.

    Of the servers of a class, which are equal but for rounding, the least loads count, so that a
    bound from them stays below.
    """
    server, resource = _classes(plain, owned)
    members = _indicator(resource)
    sizes = members.sum(axis=0)
    groups = [np.flatnonzero(server == group) for group in range(int(server.max(initial=-1)) + 1)]
    means = [each @ members / sizes for each in owned]
    least = [np.array([mean[group].min(axis=0) for group in groups]) for mean in means]
    return AlikeLoads(plain @ members / sizes, tuple(least))


def _classes(plain: F64, owned: list[F64]) -> tuple[I64, I64]:
    """The class of each server `(S,)` and each resource `(R,)`: refined until both stay."""
    server = np.zeros(len(owned[0]) if owned else 0, dtype=np.int64)
    resource = _refined(plain.T, np.zeros(plain.shape[1], dtype=np.int64))
    while owned:
        before = server.max(), resource.max()
        sums = [each @ _indicator(resource) for each in owned]
        server = _refined(np.hstack(sums), server)
        held = [_indicator(server).T @ each for each in owned]
        resource = _refined(np.vstack(held).T, resource)
        if before == (server.max(), resource.max()):
            break
    return server, resource


def _refined(values: F64, before: I64) -> I64:
    """Classes of rows that were in one and have equal values, `(n,)`."""
    largest = values.max(axis=0, initial=0.0)
    rounded = np.round(values / np.where(largest > 0, largest, 1.0), DECIMALS)
    return number_equal_rows(np.column_stack([before, rounded]))


def _indicator(class_of: I64) -> F64:
    """`(n, classes)`: one where a row is of the class."""
    result: F64 = (class_of[:, None] == np.arange(int(class_of.max(initial=-1)) + 1)).astype(float)
    return result


def number_equal_rows(*tables: F64) -> I64:
    """Rows that are equal in all tables, side by side, get one number, by first appearance; `(n,)`.

    By digests: sorting rows of thousands of values compares them many times.
    """
    numbers: dict[bytes, int] = {}
    fresh = count()
    result = np.empty(len(tables[0]), dtype=np.int64)
    for row in range(len(result)):
        digest = blake2b(digest_size=16)
        for table in tables:
            digest.update(np.add(table[row], 0.0).tobytes())  # -0.0 is 0.0
        key = digest.digest()
        if key not in numbers:
            numbers[key] = next(fresh)
        result[row] = numbers[key]
    return result
