"""Prints what swapping activations is worth in an arena: the largest batch that trains within a
budget, with and without, and what waiting for transfers costs, predicted and measured.

python -m benchmarks.swapping [--model googlenet] [--optimizer sgd] [--batch 4] [--budget-mb 250]

Most of what a convolutional network's step holds are activations, as in GeePS, which measures
GoogLeNet too. Of a model whose values and optimizer state fill the budget, swapping activations
moves little (try `--model bert_3l --optimizer adamw`).

An arena counts every tensor of a training step of one process (the CPU's memory, a stated budget, a
link of a stated rate). Costs are of steps that alternate with those of the same model unswapped in
an arena of its own. They are predicted twice: from the operations that the first pass recorded, and
from the imported graph with a profile measured on this machine.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from autosync.domain import Domain
from autosync.errors import BudgetTooSmall, DeviceMemoryExceeded
from autosync.extensions.offload.arena import Arena
from autosync.extensions.offload.attachment import HostSwapper
from autosync.extensions.offload.attachment import attach as swap_to_host
from autosync.extensions.offload.document import Offload
from autosync.extensions.offload.prediction import RankSwap, base_bytes, idle_spans, rank_swap
from autosync.extensions.offload.schedule import F64, least_budget_bytes, stall_seconds
from autosync.population import encode
from autosync.profiling import measure_profile
from autosync.search.designs.design_table import DESIGNS
from autosync.simulator.memory.peak_memory import DomainMemory, memory_of
from autosync.simulator.numba_compiler import compile_plans_fast
from benchmarks.measure import provenance
from benchmarks.models import build
from benchmarks.output import option_parser
from benchmarks.peak_memory import STATE_TENSORS, Job, domain_of

OfBatch = Callable[[int], Domain]

ROOMY = 1 << 40
MOST_BATCH = 512
"""No larger one is tried."""
GB_PER_SECOND = (0.1, 0.3, 1.0)
STEPS = 5
STEPS_TO_FIT = 3
"""Two are recorded, before and with the optimizer's state; the third follows the schedule."""
SHARES = (0.0, 0.5, 0.25, 0.75)
"""Budgets, as shares of the way from the least that works to all that a step takes."""


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--model", default="googlenet")
    parser.add_argument("--optimizer", default="sgd", choices=tuple(STATE_TENSORS))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--budget-mb", type=int, default=250)
    options = parser.parse_args()
    torch.set_num_threads(1)
    of_batch = partial(domain_of, options.model, optimizer=options.optimizer)
    print(f"{options.model}, {options.optimizer}, one thread of {provenance()['cpu']}")
    print_largest_batches(of_batch, Offload(options.budget_mb * 10**6))
    print_costs(of_batch(options.batch))


def print_largest_batches(of_batch: OfBatch, swap: Offload) -> None:
    title = f"largest batch in {swap.budget_bytes / 1e6:.0f} MB"
    print(f"  {title:40}{'measured':>10}{'predicted':>12}")
    for words, swapped in (("without swapping", False), ("with swapping", True)):
        given = of_batch, swap, swapped
        measured, predicted = (largest(partial(one, *given)) for one in (trains, fits))
        print(f"  {words:40}{measured:10}{predicted:12}", flush=True)


def largest(holds: Callable[[int], bool]) -> int:
    """The largest batch up to MOST_BATCH that holds, 0 where none does."""
    low, high = 0, 1
    while high <= MOST_BATCH and holds(high):
        low, high = high, high * 2
    high = min(high, MOST_BATCH + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def trains(of_batch: OfBatch, swap: Offload, swapped: bool, batch: int) -> bool:
    job = Job(of_batch(batch))
    try:
        with Arena(swap.budget_bytes) as arena:
            arena.count([*job.model.parameters(), *job.model.buffers()])
            if swapped:
                swap_to_host(job.model, swap, [job.optimizer])
            for _ in range(STEPS_TO_FIT):
                job.step(job.model)
    except (DeviceMemoryExceeded, BudgetTooSmall):
        return False
    return True


def fits(of_batch: OfBatch, swap: Offload, swapped: bool, batch: int) -> bool:
    memory = memory_of(of_batch(batch))
    held = held_alone(memory)
    spans = idle_spans(memory.domain, 1.0, swap)
    needed = base_bytes(held, spans) if swapped else held
    return bool(needed.max() <= swap.budget_bytes)


def held_alone(memory: DomainMemory) -> F64:
    """Of a model without ranks, moment by moment: what torch's DDP holds without its buckets."""
    domain = memory.domain
    population = encode([DESIGNS["ddp"](domain)], domain)
    plans = compile_plans_fast(population, domain)
    (held,) = memory.moment_bytes(plans, population, [0])
    alone: F64 = held[0] - domain.graph.size_bytes
    return alone


def print_costs(unprofiled: Domain) -> None:
    domain = profiled(unprofiled)
    memory = memory_of(domain)
    held = held_alone(memory)
    plain = Trained(domain, None, float("inf"))
    probe = Trained(domain, Offload(ROOMY), float("inf"))
    for job in (plain, probe):
        for _ in range(STEPS_TO_FIT):
            job.step()
    least, peak = probe.least_bytes(), plain.arena.take_peak_bytes()
    least_predicted = base_bytes(held, idle_spans(memory.domain, 1.0, Offload(ROOMY))).max()
    print(
        f"batch {domain.batch_size}: a step takes {peak / 1e6:.0f} MB (predicted "
        f"{held.max() / 1e6:.0f}), with all that is idle away {least / 1e6:.0f} MB (predicted "
        f"{least_predicted / 1e6:.0f}); compute "
        f"{domain.profile.compute_seconds * 1e3:.0f} ms (profile)"
    )
    print(
        "  GB/s  budget MB  stay  moved MB  waits ms of a step: record  graph  measured (p10-p90)"
    )
    for share in SHARES:
        swap = Offload(int(least + share * (peak - least)))
        for rate in GB_PER_SECOND:
            print_cost(domain, held, plain, swap, rate * 1e9)


def print_cost(
    domain: Domain, held: F64, plain: "Trained", swap: Offload, bytes_per_second: float
) -> None:
    swapped = Trained(domain, swap, bytes_per_second)
    for _ in range(STEPS_TO_FIT):
        swapped.step()
    waits = []
    for _ in range(STEPS):
        before = plain.step()
        waits.append(swapped.step() - (before + plain.step()) / 2)
    recorded, schedule = swapped.swapper.recorded, swapped.swapper.schedule
    assert recorded is not None
    assert schedule is not None
    from_record = stall_seconds(schedule, recorded.moments.seconds, recorded.bytes_per_second)
    from_graph = predicted(domain, held, swap, bytes_per_second)
    waits_predicted = "no fit" if from_graph is None else f"{from_graph.stall_seconds * 1e3:.0f}"
    low, high = np.percentile(waits, [10, 90])
    print(
        f"{bytes_per_second / 1e9:6.1f}{swap.budget_bytes / 1e6:11.0f}{schedule.kept.mean():6.0%}"
        f"{schedule.moved_bytes / 1e6:10.0f}{from_record * 1e3:27.0f}{waits_predicted:>7}"
        f"{statistics.median(waits) * 1e3:10.0f} ({low * 1e3:.0f} to {high * 1e3:.0f})",
        flush=True,
    )


def predicted(domain: Domain, held: F64, swap: Offload, bytes_per_second: float) -> RankSwap | None:
    spans = idle_spans(domain, 1.0, swap)
    try:
        return rank_swap(domain, held, spans, 1.0, swap.budget_bytes, bytes_per_second)
    except BudgetTooSmall:
        return None


def profiled(domain: Domain) -> Domain:
    module, inputs, loss = build(domain.graph.name, domain.batch_size)
    profile = measure_profile(module, inputs, loss, domain.graph, iterations=3)
    return Domain(domain.graph, domain.cluster, profile, domain.optimizer)


class Trained:
    """A job in an arena of its own; swap None: without swapping, in one that holds anything."""

    def __init__(self, domain: Domain, swap: Offload | None, bytes_per_second: float) -> None:
        within = swap or Offload(ROOMY)
        self.arena = Arena(within.budget_bytes, bytes_per_second)
        self.job = Job(domain)
        with self.arena:
            self.arena.count([*self.job.model.parameters(), *self.job.model.buffers()])
            optimizers = [self.job.optimizer]
            self.swapper: HostSwapper = swap_to_host(self.job.model, within, optimizers)
        if swap is None:
            self.swapper.remove()

    def step(self) -> float:
        """Seconds."""
        with self.arena:
            begin = time.perf_counter()
            self.job.step(self.job.model)
            return time.perf_counter() - begin

    def least_bytes(self) -> int:
        assert self.swapper.recorded is not None
        return least_budget_bytes(self.swapper.recorded.moments)


if __name__ == "__main__":
    main()
