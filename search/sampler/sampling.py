"""Random proposals: a proposal is its (seed, index)."""

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.population import Population
from autosync.search.sampler.adjacent_merge import merge_adjacent
from autosync.search.sampler.draw_kernels import draw_choices, fill_rows
from autosync.search.sampler.load_balance import balance_load
from autosync.search.sampler.sampling_tables import drawing
from autosync.search.space import Space


def sample(domain: Domain, space: Space, start: int, n: int, seed: int) -> Population:
    """`n` proposals; row i depends only on (seed, start + i). Releases the GIL while it works.

    Raises:
        InvalidInput: the space leaves nothing to draw, or an argument is out of range.
    """
    if n < 0 or start < 0 or start + n >= 1 << 63:
        raise InvalidInput(
            f"cannot sample {n} proposals from number {start}.", thing="sample", value=(start, n)
        )
    return sample_at(domain, space, np.arange(start, start + n, dtype=np.uint64), seed)


def sample_at(domain: Domain, space: Space, indices: NDArray[np.uint64], seed: int) -> Population:
    """The proposals of these indices, in their order."""
    if not 0 <= seed < 1 << 64:
        raise InvalidInput(
            f"the seed is {seed}.", thing="seed", value=seed, remedy="Use 0 to 2**64 - 1."
        )
    tables, options, layouts = drawing(domain, space)
    key, n, variables = np.uint64(seed), len(indices), len(tables.variables)
    layout, order = np.empty(n, dtype=np.uint8), np.empty(n, dtype=np.uint8)
    slice_bytes, overlap = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.bool_)
    axis = np.empty((n, variables), dtype=np.int8)
    parts = np.empty((n, variables), dtype=np.int32)
    kind = np.empty((n, variables), dtype=np.int16)
    piece = np.empty((n, variables), dtype=np.int64)
    draw_choices(
        tables, key, indices, layout, order, slice_bytes, overlap, axis, parts, kind, piece
    )
    first = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(parts.sum(axis=1, dtype=np.int64), out=first[1:])
    rows = int(first[-1])
    variable, length = np.empty(rows, dtype=np.uint16), np.empty(rows, dtype=np.int64)
    method, server = np.empty(rows, dtype=np.uint8), np.empty(rows, dtype=np.int16)
    option, group = np.empty(rows, dtype=np.uint16), np.empty(rows, dtype=np.int32)
    fill_rows(
        tables, first, axis, parts, kind, piece, variable, length, method, server, option, group
    )
    balance_load(tables, key, indices, first, axis, variable, length, method, server)
    merge_adjacent(tables, key, indices, first, axis, parts, length, method, server, option, group)
    return Population(
        layouts=layouts,
        options=options,
        layout=layout,
        order=order,
        slice_bytes=slice_bytes,
        overlap=overlap,
        staleness=np.zeros(n, dtype=np.uint8),
        axis=axis,
        parts=parts,
        first=first,
        variable=variable,
        length=length,
        method=method,
        server=server,
        group=group,
        option=option,
        position=np.zeros(rows, dtype=np.int32),
    )
