"""The strategies that others are made of, as columns that the kernels read."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import Population, concatenate
from autosync.search.sampler.sampling import sample
from autosync.search.sampler.sampling_tables import SamplerInputs, Tables, sampler_inputs
from autosync.search.space import Space
from autosync.simulator.numba_cache import cached_kernel

METHODS = 5


class ParentColumns(NamedTuple):
    """n strategies over V variables, N rows in all; columns are those of `Population`.

    row_of i64[n, V]: the first row of each variable. starts bool[N]: whether a row begins a group,
    among rows that may share one (`row_class`), in gradient-ready order.
    """

    order: NDArray[np.uint8]
    slice_bytes: NDArray[np.int64]
    overlap: NDArray[np.bool_]
    idle_gather: NDArray[np.bool_]
    parts: NDArray[np.int32]
    row_of: NDArray[np.int64]
    length: NDArray[np.int64]
    method: NDArray[np.uint8]
    server: NDArray[np.int16]
    option: NDArray[np.uint16]
    group: NDArray[np.int32]
    position: NDArray[np.int32]
    starts: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ParentPool:
    """population: the parents, then freshly drawn donors of mutations, with all options that may be
    drawn. groups i64[n]: how many groups each has."""

    domain: Domain
    population: Population
    parents: int
    inputs: SamplerInputs
    columns: ParentColumns
    groups: NDArray[np.int64]

    @property
    def tables(self) -> Tables:
        return self.inputs.tables

    @property
    def donors(self) -> int:
        return len(self.population) - self.parents


def pool_of(
    domain: Domain, space: Space, parents: Population, donors: int, seed: int
) -> ParentPool:
    """Parents lie in the space and run on its engine (not torch's DDP)."""
    joined = concatenate([parents, sample(domain, space, 0, donors, seed)])
    inputs = sampler_inputs(domain, space)
    numbers = dict.fromkeys((*joined.options, *inputs.options))
    joined = replace(joined, options=tuple(numbers))
    columns = columns_among(inputs.tables, joined)
    groups = np.maximum.reduceat(joined.group, joined.first[:-1]).astype(np.int64) + 1
    return ParentPool(domain, joined, len(parents), inputs, columns, groups)


def columns_among(tables: Tables, population: Population) -> ParentColumns:
    """The population's own arrays, and where its groups begin."""
    parts = population.parts.astype(np.int64)
    columns = ParentColumns(
        population.order,
        population.slice_bytes,
        population.overlap,
        population.idle_gather,
        population.parts,
        population.first[:-1, None] + np.cumsum(parts, axis=1) - parts,
        population.length,
        population.method,
        population.server,
        population.option,
        population.group,
        population.position,
        np.zeros(population.rows, dtype=np.bool_),
    )
    mark_starts(tables, len(population.options), columns, population.group)
    return columns


@njit(nogil=True)
def row_class(method: int, option: int, server: int, dtype: int, options: int, dtypes: int) -> Any:
    """Which rows may share a message: those of one number."""
    return ((np.int64(server + 1) * METHODS + method) * options + option) * dtypes + dtype


@cached_kernel
def mark_starts(
    tables: Tables, options: int, parents: ParentColumns, group: NDArray[np.int32]
) -> None:
    """Fill `parents.starts` from the groups i32[N]; pinned rows keep the groups of their pins."""
    dtypes = tables.rules[0].dtypes
    last = np.full((len(tables.weight) + 1) * METHODS * options * dtypes, -1, dtype=np.int64)
    open_in = np.full(len(last), -1, dtype=np.int64)
    for i in range(len(parents.parts)):
        for v in tables.ready_order:
            if tables.variables[v].pin >= 0:
                continue
            dtype = tables.variables[v].dtype
            start = parents.row_of[i, v]
            for row in range(start, start + parents.parts[i, v]):
                number = row_class(
                    parents.method[row],
                    parents.option[row],
                    parents.server[row],
                    dtype,
                    options,
                    dtypes,
                )
                parents.starts[row] = open_in[number] != i or last[number] != group[row]
                open_in[number], last[number] = i, group[row]
