"""The load-balance constraint (AutoSync supplement, algorithm 1), mended and compiled.

As printed its softmax has a temperature of one byte, which makes it an argmax whose first pick
ignores bandwidth. Here a shard's chances start from bandwidth and change with the servers' deficits
in units of the shard's own size, and a guard bounds the final imbalance.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from autosync.search.sampler.counter_random import mix, stream, word
from autosync.search.sampler.sampling_tables import Record, Tables
from autosync.simulator.numba_cache import cached_kernel

PLACEMENT = 2
"""Purpose of the random stream of a proposal's owners."""

TEMPERATURE = 0.5
"""Of the placement softmax, in sizes of the shard that is placed."""

GUMBEL = -np.log(-np.log((np.arange(256) + 0.5) / 256))
"""Quantiles of the Gumbel distribution: the argmax of logits plus these is a softmax draw."""

_BYTE, _8 = np.uint64(255), np.uint64(8)
_SERVER_METHOD = np.uint8(0)


@cached_kernel
def balance_load(
    tables: Tables,
    seed: np.uint64,
    indices: NDArray[np.uint64],
    first: NDArray[np.int64],
    axis: NDArray[np.int8],
    variable: NDArray[np.uint16],
    length: NDArray[np.int64],
    method: NDArray[np.uint8],
    server: NDArray[np.int16],
) -> None:
    """Give every parameter-server shard without an owner one, largest shards first.

    The load of a server ends within the largest shard of its part of the bandwidth, unless pins
    prevent it. Equal neighbours (shards of one variable) are sorted as one run.
    """
    variables, weight, log_weight = tables.variables, tables.weight, tables.log_weight
    most = 1
    for i in range(len(indices)):
        most = max(most, first[i + 1] - first[i])
    run_row = np.empty(most, dtype=np.int64)
    run_count = np.empty(most, dtype=np.int64)
    run_bytes = np.empty(most, dtype=np.float64)
    deficit = np.empty(len(weight), dtype=np.float64)
    running = np.empty(len(weight), dtype=np.float64)
    for i in range(len(indices)):
        running[:] = 0.0
        runs, total, largest = _gather_runs(
            variables, axis[i], first[i], first[i + 1], variable, length, method, server,
            run_row, run_count, run_bytes, running,
        )  # fmt: skip
        if runs == 0:
            continue
        deficit[:] = total * weight - running
        name = stream(seed, indices[i], PLACEMENT)
        descending = np.argsort(-run_bytes[:runs])
        _place_runs(
            weight, log_weight, name, largest, descending, run_row, run_count,
            run_bytes, running, deficit, server,
        )  # fmt: skip


@njit(nogil=True)
def _gather_runs(
    variables: NDArray[np.void],
    axis: NDArray[np.int8],
    start: int,
    stop: int,
    variable: NDArray[np.uint16],
    length: NDArray[np.int64],
    method: NDArray[np.uint8],
    server: NDArray[np.int16],
    run_row: NDArray[np.int64],
    run_count: NDArray[np.int64],
    run_bytes: NDArray[np.float64],
    loads: NDArray[np.float64],
) -> tuple[int, float, float]:
    """Collect ownerless shards as runs of equal neighbours; add pinned ones to `loads`.

    Returns the number of runs, the bytes of all parameter-server shards, the largest shard's.
    """
    runs, total, largest = 0, 0.0, 0.0
    last_row, last_length = -2, -1
    for row in range(start, stop):
        if method[row] != _SERVER_METHOD:
            continue
        if last_row == row - 1 and last_length == length[row]:
            same = variable[row] == variable[row - 1]
        else:
            same = False
        if same and server[row] < 0:
            size = run_bytes[runs - 1]
            run_count[runs - 1] += 1
            last_row = row
        else:
            v = np.int64(variable[row])
            size = unit_bytes(variables[v], axis[v]) * length[row]
            if server[row] >= 0:
                loads[server[row]] += size
            else:
                run_row[runs], run_count[runs], run_bytes[runs] = row, 1, size
                runs += 1
                last_row, last_length = row, length[row]
        total += size
        largest = max(largest, size)
    return runs, total, largest


@njit(nogil=True)
def unit_bytes(variable: Record, axis: int) -> Any:
    """What one replica sends for a shard of length 1 of a variable cut along `axis`."""
    return variable.load_bytes / (variable.elements if axis < 0 else variable.dims[axis])


@njit(nogil=True)
def _place_runs(
    weight: NDArray[np.float64],
    log_weight: NDArray[np.float64],
    name: np.uint64,
    largest: float,
    descending: NDArray[np.int64],
    run_row: NDArray[np.int64],
    run_count: NDArray[np.int64],
    run_bytes: NDArray[np.float64],
    running: NDArray[np.float64],
    deficit: NDArray[np.float64],
    server: NDArray[np.int16],
) -> None:
    """Draw an owner for every shard of every run.

    running: what each server holds, `(S,)`; deficit: what it lacks of its part of the total.
    Surplus is the sum of all overdrawn deficits. While it stays within the largest shard, the
    greedy choice (largest deficit first) from then on cannot leave a server more than the largest
    shard short: it would have to overdraw nobody, and deficits add up to zero in the end.
    """
    placed = running.sum()
    surplus = -np.minimum(deficit, 0.0).sum()
    number = 0
    for run in descending:
        size = run_bytes[run]
        for row in range(run_row[run], run_row[run] + run_count[run]):
            chosen = _draw_owner(
                weight, log_weight, word(name, number), size, largest - surplus, placed,
                running, deficit,
            )  # fmt: skip
            surplus += max(0.0, size - max(deficit[chosen], 0.0))
            running[chosen] += size
            deficit[chosen] -= size
            placed += size
            server[row] = chosen
            number += 1


@njit(nogil=True)
def _draw_owner(
    weight: NDArray[np.float64],
    log_weight: NDArray[np.float64],
    noise: np.uint64,
    size: float,
    margin: float,
    placed: float,
    running: NDArray[np.float64],
    deficit: NDArray[np.float64],
) -> int:
    """A softmax draw among servers that overdraw by at most `margin`; else the neediest."""
    best, best_score, neediest = -1, -np.inf, 0
    scale = 1.0 / (TEMPERATURE * size)
    bits = noise
    for j in range(len(deficit)):
        if j & 7 == 0 and j > 0:
            noise = mix(noise)
            bits = noise
        score = (
            log_weight[j]
            + (placed * weight[j] - running[j]) * scale
            + GUMBEL[np.int64(bits & _BYTE)]
        )
        bits = bits >> _8
        if deficit[j] > deficit[neediest]:
            neediest = j
        if score > best_score and size - max(deficit[j], 0.0) <= margin:
            best, best_score = j, score
    return best if best >= 0 else neediest
