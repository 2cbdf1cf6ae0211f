"""Draws the owner of one shard among the servers (AutoSync supplement, algorithm 1, mended as
`load_balance` says).

The chances are a softmax over all servers, so a draw looks at each of them; with hundreds of
servers that is most of what sampling costs. There a few are drawn first by bandwidth, from an alias
table (Walker 1977), and the softmax is over these: resampled by importance (Rubin 1987), of which
the softmax over all is the limit. The guard is the same: what no server may take goes to the
neediest, which a heap has on top.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from autosync.search.sampler.counter_random import mix

TEMPERATURE = 0.5
"""Of the placement softmax, in sizes of the shard that is placed."""

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


def alias_table(weight: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """A drawn column stands for itself with its chance, else for its alias, `(S,)` each: together
    every server has its weight (Vose 1991). weight: adds up to 1."""
    chance = weight * len(weight)
    alias = np.arange(len(weight))
    small = [i for i in range(len(weight)) if chance[i] < 1.0]
    large = [i for i in range(len(weight)) if chance[i] >= 1.0]
    while small and large:
        less, more = small.pop(), large[-1]
        alias[less] = more
        chance[more] -= 1.0 - chance[less]
        if chance[more] < 1.0:
            small.append(large.pop())
    chance[small + large] = 1.0  # what rounding left
    return chance, alias


@njit(nogil=True, _nrt=False)
def begin_placement(servers: Servers) -> None:
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
