"""The load-balance constraint (AutoSync supplement, algorithm 1), mended and compiled.

As printed its softmax has a temperature of one byte, which makes it an argmax whose first pick
ignores bandwidth. Here a shard's chances start from bandwidth and change with the servers' deficits
in units of the shard's own size, and a guard bounds the final imbalance.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from autosync.search.sampler.counter_random import draw, stream, word
from autosync.search.sampler.drawn_columns import ShardColumns
from autosync.search.sampler.sampling_tables import Record, Tables
from autosync.search.sampler.server_draws import (
    Servers,
    begin_placement,
    draw_owner,
    place_on,
)
from autosync.simulator.numba_cache import cached_kernel

PLACEMENT = 2
"""Purpose of the random stream of a proposal's owners."""

_SERVER_METHOD = np.uint8(0)


class Runs(NamedTuple):
    """Shards without an owner, equal neighbours as one run; room for all shards of a proposal.

    first i64[]: its first shard. length i64[]: its number of shards. bytes f64[]: of each.
    """

    first: NDArray[np.int64]
    length: NDArray[np.int64]
    bytes: NDArray[np.float64]


@cached_kernel
def balance_load(
    tables: Tables,
    seed: np.uint64,
    indices: NDArray[np.uint64],
    axis: NDArray[np.int8],
    shards: ShardColumns,
) -> None:
    """Give every parameter-server shard without an owner one, largest shards first; without the
    constraint any, uniformly.

    The load of a server ends within the largest shard of its part of the bandwidth, unless pins
    prevent it. Equal neighbours (shards of one variable) are sorted as one run.
    """
    first, most = shards.first, 1
    if not tables.rules[0].load_balance:
        for i in range(len(indices)):
            name = stream(seed, indices[i], PLACEMENT)
            _place_anywhere(name, first[i], first[i + 1], shards, len(tables.weight))
        return
    for i in range(len(indices)):
        most = max(most, first[i + 1] - first[i])
    runs = Runs(np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.float64))
    weight = tables.weight
    count = len(weight)
    servers = Servers(
        weight,
        tables.log_weight,
        tables.alias_chance,
        tables.alias,
        np.empty(count),
        np.empty(count),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
    )
    for i in range(len(indices)):
        servers.load[:] = 0.0
        used, total, largest = _gather_runs(
            tables.variables, axis[i], first[i], first[i + 1], shards, runs, servers.load
        )
        if used == 0:
            continue
        servers.deficit[:] = total * weight - servers.load
        begin_placement(servers)
        name = stream(seed, indices[i], PLACEMENT)
        descending = np.argsort(-runs.bytes[:used])
        _place_runs(name, largest, descending, runs, servers, shards.server)


@njit(nogil=True, _nrt=False)
def _place_anywhere(
    name: np.uint64, start: int, stop: int, shards: ShardColumns, servers: int
) -> None:
    """Draw the owner of every ownerless shard from all servers alike."""
    for row in range(start, stop):
        if shards.method[row] == _SERVER_METHOD and shards.server[row] < 0:
            shards.server[row] = draw(name, row - start, servers)


@njit(nogil=True, _nrt=False)
def _gather_runs(
    variables: NDArray[np.void],
    axis: NDArray[np.int8],
    start: int,
    stop: int,
    shards: ShardColumns,
    runs: Runs,
    load: NDArray[np.float64],
) -> tuple[int, float, float]:
    """Collect ownerless shards as runs of equal neighbours; add pinned ones to `load`.

    Returns the number of runs, the bytes of all parameter-server shards, the largest shard's.
    """
    variable, length, server = shards.variable, shards.length, shards.server
    used, total, largest = 0, 0.0, 0.0
    last_row, last_length = -2, -1
    for row in range(start, stop):
        if shards.method[row] != _SERVER_METHOD:
            continue
        if last_row == row - 1 and last_length == length[row]:
            same = variable[row] == variable[row - 1]
        else:
            same = False
        if same and server[row] < 0:
            size = runs.bytes[used - 1]
            runs.length[used - 1] += 1
            last_row = row
        else:
            v = np.int64(variable[row])
            size = unit_bytes(variables[v], axis[v]) * length[row]
            if server[row] >= 0:
                load[server[row]] += size
            else:
                runs.first[used], runs.length[used], runs.bytes[used] = row, 1, size
                used += 1
                last_row, last_length = row, length[row]
        total += size
        largest = max(largest, size)
    return used, total, largest


@njit(nogil=True, _nrt=False)
def unit_bytes(variable: Record, axis: int) -> Any:
    """What one replica sends for a shard of length 1 of a variable cut along `axis`."""
    return variable.sent_bytes / (variable.elements if axis < 0 else variable.dims[axis])


@njit(nogil=True, _nrt=False)
def _place_runs(
    name: np.uint64,
    largest: float,
    descending: NDArray[np.int64],
    runs: Runs,
    servers: Servers,
    server: NDArray[np.int16],
) -> None:
    """Draw an owner for every shard of every run.

    Surplus is the sum of all overdrawn deficits. While it stays within the largest shard, the
    greedy choice (largest deficit first) from then on cannot leave a server more than the largest
    shard short: it would have to overdraw nobody, and deficits add up to zero in the end.
    """
    deficit = servers.deficit
    placed, surplus = 0.0, 0.0
    for j in range(len(deficit)):
        placed += servers.load[j]
        surplus -= min(deficit[j], 0.0)
    number = 0
    for run in descending:
        size = runs.bytes[run]
        for row in range(runs.first[run], runs.first[run] + runs.length[run]):
            noise = word(name, number)
            chosen = draw_owner(servers, noise, size, largest - surplus, placed)
            surplus += max(0.0, size - max(deficit[chosen], 0.0))
            place_on(servers, chosen, size)
            placed += size
            server[row] = chosen
            number += 1
