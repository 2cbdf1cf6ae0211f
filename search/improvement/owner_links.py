"""Owners by the time that links are held, as compiled kernels choose them; the design
`ps_least_busy_link` says why."""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.search.domain_facts import owner_loads, pulled_bytes, sent_bytes
from autosync.search.improvement.edited_columns import SERVER_METHOD, Child, EditedColumns
from autosync.search.sampler.sampling_tables import Tables


class OwnerLinks(NamedTuple):
    """How long owners keep L links busy.

    push, pull f64[2, S, L]: link seconds of a byte sent to an owner, and fetched from it; of dense
    variables and of sparse ones. sent, pulled f64[V]: bytes of a whole variable.
    """

    push: NDArray[np.float64]
    pull: NDArray[np.float64]
    sent: NDArray[np.float64]
    pulled: NDArray[np.float64]


@lru_cache(maxsize=8)
def owner_links(domain: Domain) -> OwnerLinks:
    (push, pull), (sparse_push, sparse_pull) = (owner_loads(domain, each) for each in (False, True))
    return OwnerLinks(
        np.array([push, sparse_push]),
        np.array([pull, sparse_pull]),
        sent_bytes(domain),
        pulled_bytes(domain),
    )


@njit(nogil=True)
def add_row(
    tables: Tables,
    links: OwnerLinks,
    columns: EditedColumns,
    number: int,
    row: int,
    owner: int,
    busy: NDArray[np.float64],
) -> None:
    """Add to `busy` f64[L] for how long a row of child `number` keeps links busy, owned so."""
    v = np.int64(columns.variable[row])
    variable, axis = tables.variables[v], columns.axis[number, v]
    share = columns.length[row] / (variable.elements if axis < 0 else variable.dims[axis])
    sparse = np.int64(variable.sparse)
    for link in range(len(busy)):
        busy[link] += share * (
            links.sent[v] * links.push[sparse, owner, link]
            + links.pulled[v] * links.pull[sparse, owner, link]
        )


@njit(nogil=True)
def busy_seconds(
    tables: Tables, links: OwnerLinks, columns: EditedColumns, child: Child
) -> NDArray[np.float64]:
    """f64[L]: of all rows of the child that have an owner."""
    busy = np.zeros(links.push.shape[2])
    for row in range(child.start, child.stop):
        if columns.method[row] == SERVER_METHOD and columns.server[row] >= 0:
            owner = np.int64(columns.server[row])
            add_row(tables, links, columns, child.number, row, owner, busy)
    return busy


@njit(nogil=True)
def least_busy_owner(
    tables: Tables,
    links: OwnerLinks,
    columns: EditedColumns,
    number: int,
    rows: NDArray[np.int64],
    busy: NDArray[np.float64],
    but: int,
) -> Any:
    """The owner of all these rows of child `number` that leaves the busiest link least busy, of
    equal ones that with the least sum of squares. but: an owner that is none, or -1."""
    best, best_most, best_sum = -1, np.inf, np.inf
    after = np.empty_like(busy)
    for owner in range(len(tables.weight)):
        if owner == but:
            continue
        after[:] = busy
        for row in rows:
            add_row(tables, links, columns, number, row, owner, after)
        most, total = after.max(), (after**2).sum()
        less = most < best_most * (1 - 1e-9)
        if less or (most <= best_most * (1 + 1e-9) and total < best_sum):
            best, best_most, best_sum = owner, most, total
    return best
