"""What swapping changes: which tensors of a training step lie idle and when, what then is on the
devices, and how long compute waits for transfers.

Moments are those of `simulator.memory.live_tensors`: the forward of each operation, then the
backward passes in their order; and, last, the optimizer's step.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autosync.cluster.devices import DEVICE_TYPES
from autosync.documents import LARGEST_COUNT, to_data
from autosync.domain import Domain
from autosync.errors import BudgetTooSmall, InvalidStrategy
from autosync.extensions.offload.document import Offload, budget_within, forms_within
from autosync.extensions.offload.schedule import (
    F64,
    SMALLEST_BYTES,
    IdleSpans,
    Moments,
    SwapSchedule,
    joined,
    make_schedule,
    spans_of,
    stall_seconds,
)
from autosync.extensions.offload.verification import check_strategy, swapped_in_words
from autosync.graph import ModelGraph
from autosync.plan import PlanTable
from autosync.population import Population
from autosync.profiling import reach_variables
from autosync.simulator.cost.compute_time import compute_factors
from autosync.simulator.extension_prediction import Prediction, Rows
from autosync.simulator.memory.live_tensors import storages_of
from autosync.simulator.memory.peak_memory import DomainMemory, device_memory_bytes, memory_of
from autosync.strategy import Replica, Strategy


class OffloadPrediction(Prediction):
    def slowdowns(
        self, domain: Domain, population: Population, plans: PlanTable, rows: Rows
    ) -> F64:
        """Raises InvalidStrategy where a budget is less than the least that works."""
        found = np.ones(len(rows))
        moments = memory_of(domain).moment_bytes(plans, population, rows)
        for place, (row, held) in enumerate(zip(rows, moments, strict=True)):
            ranks = swaps_of_ranks(domain, population, row, held, _swap_of(population, row))
            if most := max(rank.compute_seconds for rank in ranks):
                found[place] = max(rank.seconds for rank in ranks) / most
        return found

    def peak_bytes(
        self,
        memory: DomainMemory,
        plans: PlanTable,
        population: Population,
        rows: Rows,
        batch_scale: float,
        found: F64,
    ) -> F64:
        """What is left with all that is idle elsewhere, and all of the budget where that is more,
        if the rank needs as much."""
        moments = memory.moment_bytes(plans, population, rows, batch_scale)
        peaks = np.empty_like(found)
        for place, (row, held) in enumerate(zip(rows, moments, strict=True)):
            swap = _swap_of(population, row)
            scales = _shares(memory.domain, population.layouts[population.layout[row]])
            spans = (idle_spans(memory.domain, batch_scale * scale, swap) for scale in scales)
            pairs = zip(held, spans, strict=True)
            least = [base_bytes(of_rank, idle).max() for of_rank, idle in pairs]
            needed = np.minimum(held.max(axis=1), float(swap.budget_bytes))
            peaks[place] = np.maximum(least, needed)
        return peaks

    def check_peaks(self, strategy: Strategy, peaks: F64) -> None:
        """Raises BudgetTooSmall where its budget does not hold a step."""
        swap, rank = strategy.extension(Offload), int(peaks.argmax())
        assert swap is not None
        if peaks[rank] <= swap.budget_bytes:
            return
        least = int(np.ceil(peaks[rank]))
        raise BudgetTooSmall(
            f"a budget of {swap.budget_bytes:,} bytes does not hold a training step: rank {rank} "
            f"needs {least:,} bytes with all that it swaps and that lies idle in host memory.",
            thing="swap.budget_bytes",
            value=swap.budget_bytes,
            remedy=f"Give {least:,} bytes or more, or a smaller batch.",
        )

    def ways_to_fit(
        self, memory: DomainMemory, plans: PlanTable, population: Population, strategy: Strategy
    ) -> Iterator[str]:
        """What swapping within the devices' memory costs, with optimizer state where
        activations alone do not help; nothing where that cannot be, does not help or is chosen
        already."""
        budget = swap_budget_bytes(memory.domain)
        if budget is None or strategy.extension(Offload) is not None:
            return
        for swap in forms_within(budget):
            with suppress(InvalidStrategy):
                check_strategy(strategy.carrying(swap))
                (held,) = memory.moment_bytes(plans, population, [0])
                ranks = swaps_of_ranks(memory.domain, population, 0, held, swap)
                slowest = max(ranks, key=lambda rank: rank.seconds)
                yield (
                    f"With {swapped_in_words(swap)} swapped to host memory "
                    f'("swap": {json.dumps(to_data(swap))}) '
                    "it fits; forward and backward then wait a predicted "
                    f"{slowest.stall_seconds * 1e3:.3g} ms for transfers, beside "
                    f"{slowest.compute_seconds * 1e3:.3g} ms of compute."
                )
                return


PREDICTION = OffloadPrediction()


def swap_budget_bytes(domain: Domain) -> int | None:
    """Of the smallest device, less the reserve. None where no limit is known, or a device has no
    host memory beside its own, in which activations could wait."""
    least = float(device_memory_bytes(domain).min())
    types = {device.type for device in domain.cluster.device_of_rank()}
    if not np.isfinite(least) or not all(DEVICE_TYPES[each].host_beside for each in types):
        return None
    return budget_within(least)


def swaps_of_ranks(
    domain: Domain, population: Population, index: int, held: F64, swap: Offload
) -> "list[RankSwap]":
    """Of every rank under strategy `index`, if it swapped so. held f64[world, 2n + 1]: its
    `DomainMemory.moment_bytes`.

    Raises:
        InvalidStrategy: a budget is less than the least that works.
    """
    layout = population.layouts[population.layout[index]]
    factors, shares = compute_factors(domain, layout), _shares(domain, layout)
    made: dict[tuple[object, ...], RankSwap] = {}
    found = []
    for rank, factor in enumerate(factors.tolist()):
        rate = host_bytes_per_second(domain, rank)
        alike = (held[rank].tobytes(), shares[rank], factor, rate)
        if alike not in made:
            spans = idle_spans(domain, shares[rank], swap)
            budget = float(swap.budget_bytes)
            made[alike] = rank_swap(domain, held[rank], spans, factor, budget, rate)
        found.append(made[alike])
    return found


def _swap_of(population: Population, index: int) -> Offload:
    """Of trials of earlier versions that moved values as well no budget is known to be too
    small."""
    swap = population.entry(index, Offload)
    assert swap is not None
    return replace(swap, budget_bytes=LARGEST_COUNT) if swap.values else swap


def _shares(domain: Domain, layout: tuple[Replica, ...]) -> list[float]:
    """Of each rank, over the even one."""
    shares = {replica.rank: replica.share * domain.world_size for replica in layout}
    return [shares[rank] for rank in range(domain.world_size)]


@dataclass(frozen=True, slots=True)
class RankSwap:
    """stall_seconds: of an iteration, beside compute_seconds of forward and backward."""

    schedule: SwapSchedule
    stall_seconds: float
    compute_seconds: float

    @property
    def seconds(self) -> float:
        return self.compute_seconds + self.stall_seconds


def base_bytes(held_bytes: F64, spans: IdleSpans) -> F64:
    """`(M,)`: what is left of the bytes of each moment while every idle span is elsewhere."""
    change = np.zeros(len(held_bytes) + 1)
    np.add.at(change, spans.begin, spans.size_bytes)
    np.add.at(change, spans.end, -spans.size_bytes)
    left: F64 = np.maximum(held_bytes - change.cumsum()[:-1], 0.0)
    return left


def rank_swap(
    domain: Domain,
    held_bytes: F64,
    spans: IdleSpans,
    factor: float,
    budget_bytes: float,
    bytes_per_second: float,
) -> RankSwap:
    """held_bytes f64[2n + 1]: without swapping, of each moment and of the optimizer's step. factor:
    how many times the profiled compute the rank takes.

    Raises:
        InvalidStrategy: the budget is less than the least that works.
    """
    seconds = factor * _moment_seconds(domain)
    moments = Moments(seconds, base_bytes(held_bytes, spans))
    schedule = make_schedule(spans, moments, budget_bytes, bytes_per_second)
    stalled = stall_seconds(schedule, seconds, bytes_per_second)
    return RankSwap(schedule, stalled, float(seconds.sum()))


def host_bytes_per_second(domain: Domain, rank: int) -> float:
    """At the full rate of the device's PCIe slot, which no transfer exceeds."""
    device = domain.cluster.device_of_rank()[rank]
    return DEVICE_TYPES[device.type].pcie_gbps * 1e9 / 8


def _moment_seconds(domain: Domain) -> F64:
    """Profiled seconds of each moment; those of the optimizer's step hide no transfer."""
    profile, order = domain.profile, domain.graph.backward_order
    backward = [profile.backward_seconds[operation] for operation in order]
    return np.array([*profile.forward_seconds, *backward, 0.0])


def idle_spans(domain: Domain, batch_scale: float, swap: Offload) -> IdleSpans:
    """What may wait on the host, at so many times the graph's batch."""
    activations, states = idle_tensors(domain)
    found = activations.at(batch_scale)
    return joined(found, states) if swap.optimizer_state else found


@lru_cache(maxsize=8)
def idle_tensors(domain: Domain) -> "tuple[IdleActivations, IdleSpans]":
    """Activations and optimizer state that may be swapped."""
    on_gpu = any(DEVICE_TYPES[d.type].is_gpu for d in domain.cluster.device_of_rank())
    return idle_activations(domain.graph, on_gpu), idle_states(domain)


@dataclass(frozen=True, slots=True)
class IdleActivations:
    """Of S spans. batched bool[S]: whether the tensor has the batch dimension; sizes of such are
    those at an even share."""

    spans: IdleSpans
    batched: NDArray[np.bool_]

    def at(self, batch_scale: float) -> IdleSpans:
        """At so many times the graph's batch, those that are worth a transfer."""
        sizes = self.spans.size_bytes * np.where(self.batched, batch_scale, 1.0)
        worth = sizes >= SMALLEST_BYTES
        all_spans = self.spans
        return IdleSpans(
            size_bytes=sizes[worth],
            tensor=all_spans.tensor[worth],
            final=all_spans.final[worth],
            begin=all_spans.begin[worth],
            end=all_spans.end[worth],
        )


def idle_activations(graph: ModelGraph, on_gpu: bool) -> IdleActivations:
    """on_gpu: as `storages_of` has it."""
    count = len(graph.operations)
    backward_at = _backward_moments(graph).tolist()
    trained = reach_variables(graph)
    storages = storages_of(graph, trained, on_gpu)
    written: dict[int, int] = {}
    read: dict[int, int] = {}  # the last operations that do, by the root of a storage
    backward: defaultdict[int, set[int]] = defaultdict(set)
    for index, operation in enumerate(graph.operations):
        root = storages.root[index]
        written[root] = read[root] = index
        for source in operation.inputs:
            read[storages.root[source]] = index
        for kept in storages.keeps[index]:
            backward[kept].add(backward_at[index])
    rows: list[tuple[float, int, int, int, int]] = []
    for root, moments in backward.items():
        final, before = written[root] + 1, read[root]
        for moment in sorted(moments):
            rows.append((storages.read_bytes[root], root, final, before + 1, moment))
            final = before = moment
    for index, size in enumerate(storages.apart_bytes):
        if trained[index] and size:
            rows.append((size, count + index, index + 1, index + 1, backward_at[index]))
    spans = spans_of(rows)
    made_by = [graph.operations[tensor % count] for tensor in spans.tensor.tolist()]
    batched = np.array([operation.has_batch_dimension for operation in made_by], dtype=np.bool_)
    return IdleActivations(spans, batched)


def idle_states(domain: Domain) -> IdleSpans:
    """Of an optimizer that updates within `step()`, on a rank that updates every variable whole.
    Moments are those of `idle_activations` and, last, that step, which needs all of it."""
    step = 2 * len(domain.graph.operations)
    sizes = np.repeat(domain.variables.size_bytes, domain.optimizer.state_tensors).tolist()
    worth = (size for size in sizes if size >= SMALLEST_BYTES)
    return spans_of([(float(size), place, 0, 0, step) for place, size in enumerate(worth)])


def _backward_moments(graph: ModelGraph) -> NDArray[np.int64]:
    """Of each operation's backward."""
    count = len(graph.operations)
    found = np.empty(count, dtype=np.int64)
    found[list(graph.backward_order)] = count + np.arange(count)
    return found
