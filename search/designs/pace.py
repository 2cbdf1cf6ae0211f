"""PACE: all-reduces fused by a max-min dynamic program and interrupted where that ends soonest
(Bao et al., INFOCOM 2020, sections IV and V)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.search.designs.building_blocks import dense
from autosync.search.designs.explicit_order import OrderedMessage, strategy_of
from autosync.search.designs.tensor_fusion import max_min_partitions
from autosync.search.designs.wire_estimates import (
    ready_seconds,
    sent_bytes,
    startup_seconds,
    tail_seconds,
    wire_seconds,
)
from autosync.simulator.preemptive_schedule import Run, longest_tail_first, preemptive_runs
from autosync.strategy import AllGather, AllReduce, Strategy

F64 = NDArray[np.float64]
Fused = tuple[int, ...]
"""Variables of one all-reduce operator, in gradient-ready order."""


def pace_strategy(domain: Domain) -> Strategy:
    return preemptive_strategy(domain, AllReduce(0), fused_operators(domain, AllReduce(0)))


def pace_unfused(domain: Domain) -> Strategy:
    """The optimal schedule of the operators as they are, without fusion (section IV alone)."""
    return preemptive_strategy(domain, AllReduce(0), unfused_operators(domain))


def pace_hierarchical(domain: Domain) -> Strategy:
    """PACE over hierarchical all-reduces, whose times the same linear model gives."""
    synchronizer = AllReduce(0, "hierarchical")
    return preemptive_strategy(domain, synchronizer, fused_operators(domain, synchronizer))


def preemptive_strategy(
    domain: Domain, synchronizer: AllReduce, operators: Sequence[Fused]
) -> Strategy:
    """The optimal preemptive schedule of all-reduce operators as unequal slices in explicit order.

    Longest tail first. Every slice is a message with a startup of its own, so none is cut that is
    shorter than one. Sparse gradients are gathered whole, in their place of the same schedule.
    """
    sparse = [i for i, variable in enumerate(domain.graph.variables) if variable.sparse]
    jobs = [*operators, *((index,) for index in sparse)]
    ready, needs, tails = _windows(domain, synchronizer, jobs)
    least_seconds = startup_seconds(domain, synchronizer)
    runs = preemptive_runs(ready, needs, tails, least_seconds)
    sent = zip(runs, _run_elements(domain, jobs, needs, runs), strict=True)
    messages = [
        OrderedMessage(synchronizer if run.job < len(operators) else AllGather(0), elements)
        for run, elements in sent
        if elements
    ]
    return strategy_of(domain, messages)


def unfused_operators(domain: Domain) -> list[Fused]:
    """Dense gradients in the order in which they become ready; those of one type that the same
    operation completes are one (section IV-A)."""
    graph = domain.graph
    wanted = set(dense(domain))
    found: dict[tuple[int, str], list[int]] = {}
    for index in graph.gradient_order:
        if index in wanted:
            key = graph.gradient_after[index], graph.variables[index].dtype
            found.setdefault(key, []).append(index)
    return [tuple(members) for members in found.values()]


def fused_operators(domain: Domain, synchronizer: AllReduce) -> list[Fused]:
    """The partition of the chain whose optimal schedule ends soonest, of the max-min partition into
    every number of parts (algorithm 1). Neighbours of another type are not fused."""
    chain = unfused_operators(domain)
    if not chain:
        return []
    ready, _, tails = _windows(domain, synchronizer, chain)
    size_bytes = _sums(sent_bytes(domain), chain)
    best, soonest = np.zeros(1, dtype=np.int64), np.inf
    for begins in max_min_partitions(size_bytes):
        end = longest_tail_first(
            np.maximum.reduceat(ready, begins),
            wire_seconds(domain, synchronizer, np.add.reduceat(size_bytes, begins)),
            np.maximum.reduceat(tails, begins),
        )
        if end < soonest:
            best, soonest = begins, end
    parts = np.split(np.arange(len(chain)), best[1:])
    return [fused for part in parts for fused in _of_one_type(domain, [chain[i] for i in part])]


def _of_one_type(domain: Domain, operators: Sequence[Fused]) -> list[Fused]:
    by_type: dict[str, list[int]] = {}
    for operator in operators:
        for index in operator:
            by_type.setdefault(domain.graph.variables[index].dtype, []).append(index)
    return [tuple(members) for members in by_type.values()]


def _windows(
    domain: Domain, synchronizer: AllReduce, jobs: Sequence[Fused]
) -> tuple[F64, F64, F64]:
    """When each job is ready, its seconds on the wire, and its tail, `(jobs,)`."""
    ready, tails = ready_seconds(domain), tail_seconds(domain)
    sizes = _sums(sent_bytes(domain), jobs)
    gathered = np.array([bool(domain.variables.sparse[job[0]]) for job in jobs], dtype=np.bool_)
    needs = np.where(
        gathered,
        wire_seconds(domain, AllGather(0), sizes),
        wire_seconds(domain, synchronizer, sizes),
    )
    return (
        np.array([ready[list(job)].max() for job in jobs]),
        needs,
        np.array([tails[list(job)].max() for job in jobs]),
    )


def _sums(each: F64, jobs: Sequence[Fused]) -> F64:
    return np.array([each[list(job)].sum() for job in jobs], dtype=np.float64)


def _run_elements(
    domain: Domain, jobs: Sequence[Fused], needs: F64, runs: Sequence[Run]
) -> list[tuple[tuple[int, int], ...]]:
    """For each run, the elements of variables that it sends: as much of its job as the part of the
    job's seconds that have passed by its end. A sparse gradient goes with its first run."""
    variables = domain.graph.variables
    served = np.zeros(len(jobs))
    sent = [0] * len(jobs)
    found = []
    for run in runs:
        job = jobs[run.job]
        total = sum(variables[i].elements for i in job)
        served[run.job] += run.end_seconds - run.begin_seconds
        share = served[run.job] / needs[run.job] if needs[run.job] > 0 else 1.0
        ends = share > 1 - 1e-9 or variables[job[0]].sparse
        until = total if ends else round(share * total)
        found.append(tuple(_span(domain, job, sent[run.job], until)))
        sent[run.job] = until
    return found


def _span(domain: Domain, job: Fused, start: int, stop: int) -> list[tuple[int, int]]:
    """Elements `start` to `stop` of a job's variables, one behind the other."""
    found, begin = [], 0
    for index in job:
        end = begin + domain.graph.variables[index].elements
        length = min(stop, end) - max(start, begin)
        if length > 0:
            found.append((index, length))
        begin = end
    return found
