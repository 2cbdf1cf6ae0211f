"""The load-balance constraint (AutoSync supplement, algorithm 1), corrected and compiled.

As printed, its softmax has a temperature of one byte, which makes it an argmax whose first pick
ignores bandwidth. Here a shard's chances start from bandwidth and change with the servers' deficits
in units of the shard's own size, and a guard bounds the final imbalance.

A softmax over all servers looks at each of them; with hundreds of servers that is most of what
sampling costs. Then a few are drawn first by bandwidth, from an alias table (Walker 1977), and the
softmax is over these: resampled by importance (Rubin 1987), of which the softmax over all is the
limit. The guard is the same: a shard that no server may take goes to the one with the largest
deficit, which a heap keeps on top.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from autosync.search.sampler.counter_random import draw, mix, stream, word
from autosync.search.sampler.sampling_tables import Record, ShardColumns, Tables
from autosync.simulator.numba_cache import cached_kernel

OWNERS = 2
"""Purpose of the random stream of a proposal's owners."""

_SERVER_METHOD = np.uint8(0)

TEMPERATURE = 0.5
"""Of the softmax over owners, in sizes of the shard that gets one."""

FEW_SERVERS = 64
"""Up to so many, a draw looks at all of them."""
CANDIDATES = 32
"""Of more servers, those that a draw looks at."""

GUMBEL = -np.log(-np.log((np.arange(256) + 0.5) / 256))
"""Quantiles of the Gumbel distribution: the argmax of logits plus these is a softmax draw."""

_BYTE, _COIN = np.uint64(255), np.uint64((1 << 24) - 1)
_8, _32 = np.uint64(8), np.uint64(32)
_COINS = 1.0 / (1 << 24)


class Servers(NamedTuple):
    """The S servers while their shards are placed.

    weight, log_weight f64[S]: each one's part of the cluster's bandwidth.
    alias_chance f64[S], alias i64[S]: `alias_table` of the weights.
    load f64[S]: bytes each holds. deficit f64[S]: bytes it lacks of its part of the total.
    heap, place i64[S]: of more than FEW_SERVERS, the largest deficit on top; where each is in it.
    """

    weight: NDArray[np.float64]
    log_weight: NDArray[np.float64]
    alias_chance: NDArray[np.float64]
    alias: NDArray[np.int64]
    load: NDArray[np.float64]
    deficit: NDArray[np.float64]
    heap: NDArray[np.int64]
    place: NDArray[np.int64]


class Runs(NamedTuple):
    """Shards without an owner, equal neighbours as one run; as long as a proposal has shards.

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
            name = stream(seed, indices[i], OWNERS)
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
        begin_owners(servers)
        name = stream(seed, indices[i], OWNERS)
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


@njit(nogil=True, _nrt=False)
def begin_owners(servers: Servers) -> None:
    """After the deficits are set anew."""
    count = len(servers.deficit)
    if count <= FEW_SERVERS:
        return
    for i in range(count):
        servers.heap[i] = servers.place[i] = i
    for i in range(count // 2, -1, -1):
        _sift_down(servers, i)


@njit(nogil=True, _nrt=False)
def place_on(servers: Servers, chosen: int, size: float) -> None:
    """The server takes a shard of so many bytes."""
    servers.load[chosen] += size
    servers.deficit[chosen] -= size
    if len(servers.deficit) > FEW_SERVERS:
        _sift_down(servers, servers.place[chosen])


@njit(nogil=True, _nrt=False)
def draw_owner(
    servers: Servers, noise: np.uint64, size: float, margin: float, placed: float
) -> Any:
    """A softmax draw among servers that overdraw by at most `margin`; else the neediest."""
    if len(servers.deficit) > FEW_SERVERS:
        return _draw_of_many(servers, noise, size, margin, placed)
    deficit = servers.deficit
    best, best_score, neediest = -1, -np.inf, 0
    scale = 1.0 / (TEMPERATURE * size)
    bits = noise
    for j in range(len(deficit)):
        if j & 7 == 0 and j > 0:
            noise = mix(noise)
            bits = noise
        score = (
            servers.log_weight[j]
            + (placed * servers.weight[j] - servers.load[j]) * scale
            + GUMBEL[np.int64(bits & _BYTE)]
        )
        bits = bits >> _8
        if deficit[j] > deficit[neediest]:
            neediest = j
        if score > best_score and size - max(deficit[j], 0.0) <= margin:
            best, best_score = j, score
    return best if best >= 0 else neediest


@njit(nogil=True, _nrt=False)
def _draw_of_many(
    servers: Servers, noise: np.uint64, size: float, margin: float, placed: float
) -> Any:
    """Where the neediest overdraws by more than `margin`, all do."""
    neediest = servers.heap[0]
    if size - max(servers.deficit[neediest], 0.0) > margin:
        return neediest
    best, best_score = -1, -np.inf
    scale = 1.0 / (TEMPERATURE * size)
    count = np.uint64(len(servers.deficit))
    for _ in range(CANDIDATES):
        noise = mix(noise)
        j: Any = np.int64(((noise >> _32) * count) >> _32)
        if np.int64((noise >> _8) & _COIN) * _COINS >= servers.alias_chance[j]:
            j = servers.alias[j]
        score = (placed * servers.weight[j] - servers.load[j]) * scale
        score += GUMBEL[np.int64(noise & _BYTE)]
        if score > best_score and size - max(servers.deficit[j], 0.0) <= margin:
            best, best_score = j, score
    return best if best >= 0 else neediest


@njit(nogil=True, _nrt=False)
def _sift_down(servers: Servers, start: int) -> None:
    """The server at this place of the heap sinks below those that lack more; of equals the first
    one is higher."""
    heap, place, deficit = servers.heap, servers.place, servers.deficit
    hole, moved = start, heap[start]
    while 2 * hole + 1 < len(heap):
        child = 2 * hole + 1
        if child + 1 < len(heap) and _lacks_more(deficit, heap[child + 1], heap[child]):
            child += 1
        if not _lacks_more(deficit, heap[child], moved):
            break
        heap[hole] = heap[child]
        place[heap[hole]] = hole
        hole = child
    heap[hole] = moved
    place[moved] = hole


@njit(nogil=True, _nrt=False)
def _lacks_more(deficit: NDArray[np.float64], one: int, other: int) -> bool:
    return bool(deficit[one] > deficit[other] or (deficit[one] == deficit[other] and one < other))
