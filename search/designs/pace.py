"""PACE: all-reduces fused by a max-min dynamic program and interrupted where that ends soonest
(Bao et al., INFOCOM 2020, sections IV and V)."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.search.designs.building_blocks import OrderedMessage, strategy_of
from autosync.search.designs.known_designs import cheap_factors
from autosync.search.designs.wire_estimates import (
    ready_seconds,
    startup_seconds,
    tail_seconds,
    wire_seconds,
)
from autosync.search.domain_facts import factor_bytes, sent_bytes
from autosync.simulator.preemptive_schedule import (
    Run,
    least_end,
    longest_tail_first,
    preemptive_runs,
)
from autosync.strategy import AllGather, AllReduce, Factors, Strategy, Synchronizer

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Operator = tuple[int, ...]
"""Variables that travel together, by index, in gradient-ready order."""


def pace(domain: Domain) -> Strategy:
    """All-reduces fused by the max-min program, interrupted where that ends soonest."""
    return _fused_and_scheduled(domain, AllReduce(0), {})


def pace_hierarchical(domain: Domain) -> Strategy:
    """PACE over hierarchical all-reduces, whose times the same linear model gives."""
    return _fused_and_scheduled(domain, AllReduce(0, "hierarchical"), {})


def pace_factors(domain: Domain) -> Strategy:
    """PACE beside sufficient factors, which are not cut.

    Raises:
        NotSupported: nowhere are factors fewer bytes.
    """
    return _fused_and_scheduled(
        domain, AllReduce(0), dict.fromkeys(cheap_factors(domain), Factors(0))
    )


def pace_unfused(domain: Domain) -> Strategy:
    """The optimal schedule of the operators as they are, without fusion (section IV alone)."""
    whole = _gathered(domain)
    operators = all_reduce_operators(domain, whole)
    return preemptive_strategy(domain, AllReduce(0), operators, whole)


def _fused_and_scheduled(
    domain: Domain, synchronizer: AllReduce, factored: Mapping[int, Synchronizer]
) -> Strategy:
    whole = _gathered(domain) | dict(factored)
    operators = fused_operators(domain, synchronizer, all_reduce_operators(domain, whole))
    return preemptive_strategy(domain, synchronizer, operators, whole)


def preemptive_strategy(
    domain: Domain,
    synchronizer: AllReduce,
    operators: Sequence[Operator],
    whole: Mapping[int, Synchronizer],
) -> Strategy:
    """The optimal preemptive schedule of all-reduce operators as unequal slices in explicit order:
    of those that are ready the one with the longest tail.

    Every slice is a message with a startup of its own, so none is cut that is shorter than one.
    whole: what cannot be cut, by variable; it has its place in the same schedule.
    """
    jobs = [*operators, *((index,) for index in whole)]
    kinds = [*(synchronizer for _ in operators), *whole.values()]
    sizes = [_size_bytes(domain, kind, job) for kind, job in zip(kinds, jobs, strict=True)]
    needs = _wire_seconds_of(domain, kinds, np.array(sizes))
    ready, tails = _windows(domain, jobs)
    least_seconds = startup_seconds(domain, synchronizer)
    runs = preemptive_runs(ready, needs, tails, least_seconds)
    messages = [
        OrderedMessage(kinds[run.job], elements)
        for run, elements in zip(runs, _cut(domain, jobs, len(operators), needs, runs), strict=True)
        if elements
    ]
    return strategy_of(domain, messages)


def all_reduce_operators(domain: Domain, whole: Mapping[int, Synchronizer]) -> list[Operator]:
    """All gradients but `whole` ones in the order in which they become ready; those of one type
    that the same operation completes are one (section IV-A)."""
    graph = domain.graph
    found: dict[tuple[int, str], list[int]] = {}
    for index in graph.gradient_order:
        if index not in whole:
            key = graph.gradient_after[index], graph.variables[index].dtype
            found.setdefault(key, []).append(index)
    return [tuple(members) for members in found.values()]


def fused_operators(
    domain: Domain, synchronizer: AllReduce, chain: Sequence[Operator]
) -> list[Operator]:
    """The partition of the chain whose optimal schedule ends soonest, of the max-min partition into
    every number of parts (algorithm 1). Neighbours of another type are not fused."""
    if not chain:
        return []
    ready, tails = _windows(domain, chain)
    sizes = np.array([_size_bytes(domain, synchronizer, operator) for operator in chain])
    best, soonest = np.zeros(1, dtype=np.int64), np.inf
    partitions = max_min_partitions(sizes)
    joined = np.concatenate([np.add.reduceat(sizes, begins) for begins in partitions])
    ends = np.cumsum([len(begins) for begins in partitions])
    needs = np.split(wire_seconds(domain, synchronizer, joined), ends[:-1])
    for begins, need in zip(partitions, needs, strict=True):
        whole = np.maximum.reduceat(ready, begins), need, np.maximum.reduceat(tails, begins)
        if least_end(*whole) >= soonest:
            continue
        end = longest_tail_first(*whole)
        if end < soonest:
            best, soonest = begins, end
    parts = np.split(np.arange(len(chain)), best[1:])
    return [fused for part in parts for fused in _of_one_type(domain, [chain[i] for i in part])]


def max_min_partitions(size_bytes: NDArray[np.float64]) -> list[I64]:
    """For R of 1 to N, the chain of N tensors in R parts whose smallest part is largest.

    Each as the places at which its parts begin. PACE, algorithm 1: best(i, R), of the tensors from
    i on, is the largest min(bytes of a prefix, best(behind the prefix, R - 1)), of equal ones the
    shortest prefix. O(N^3) in all, a row of N^2 at a time.
    """
    count = len(size_bytes)
    total = np.concatenate(([0.0], np.cumsum(size_bytes)))
    prefix = np.where(np.tri(count, k=-1), -np.inf, total[None, 1:] - total[:-1, None])
    best = total[-1] - total[:-1]
    cuts: list[I64] = []
    partitions = [np.zeros(1, dtype=np.int64)]
    for _ in range(1, count):
        behind = np.append(best[1:], -np.inf)
        smallest = np.minimum(prefix, behind[None, :])
        cuts.append(smallest.argmax(axis=1) + 1)
        best = smallest.max(axis=1)
        begins = [0]
        for cut in reversed(cuts):
            begins.append(int(cut[begins[-1]]))
        partitions.append(np.array(begins, dtype=np.int64))
    return partitions


def _gathered(domain: Domain) -> dict[int, Synchronizer]:
    variables = enumerate(domain.graph.variables)
    return {index: AllGather(0) for index, variable in variables if variable.sparse}


def _of_one_type(domain: Domain, operators: Sequence[Operator]) -> list[Operator]:
    by_type: dict[str, list[int]] = {}
    for operator in operators:
        for index in operator:
            by_type.setdefault(domain.graph.variables[index].dtype, []).append(index)
    return [tuple(members) for members in by_type.values()]


def _wire_seconds_of(domain: Domain, kinds: Sequence[Synchronizer], sizes: F64) -> F64:
    """`wire_seconds` of messages of these kinds and sizes, `(messages,)`."""
    found = np.empty(len(kinds))
    for kind in set(kinds):
        rows = [row for row, other in enumerate(kinds) if other == kind]
        found[rows] = wire_seconds(domain, kind, sizes[rows])
    return found


def _size_bytes(domain: Domain, kind: Synchronizer, job: Operator) -> float:
    each = factor_bytes(domain) if isinstance(kind, Factors) else sent_bytes(domain)
    return float(each[list(job)].sum())


def _windows(domain: Domain, jobs: Sequence[Operator]) -> tuple[F64, F64]:
    """When each job is ready, and its tail, `(jobs,)` seconds."""
    ready, tails = ready_seconds(domain), tail_seconds(domain)
    return (
        np.array([ready[list(job)].max() for job in jobs]),
        np.array([tails[list(job)].max() for job in jobs]),
    )


def _cut(
    domain: Domain,
    jobs: Sequence[Operator],
    divisible: int,
    needs: F64,
    runs: Sequence[Run],
) -> list[tuple[tuple[int, int], ...]]:
    """For each run, the elements of variables that it sends: as much of its job as the part of the
    job's seconds that have passed by its end.

    divisible: the jobs from there on go with their first run, whole.
    """
    served, sent = np.zeros(len(jobs)), [0] * len(jobs)
    found = []
    for run in runs:
        job = jobs[run.job]
        total = sum(domain.graph.variables[index].elements for index in job)
        served[run.job] += run.end_seconds - run.begin_seconds
        ends = run.job >= divisible or served[run.job] >= needs[run.job] * (1 - 1e-9)
        until = total if ends else round(served[run.job] / needs[run.job] * total)
        found.append(tuple(_span(domain, job, sent[run.job], until)))
        sent[run.job] = until
    return found


def _span(domain: Domain, job: Operator, start: int, stop: int) -> list[tuple[int, int]]:
    """Elements `start` to `stop` of a job's variables, one behind the other."""
    found, begin = [], 0
    for index in job:
        end = begin + domain.graph.variables[index].elements
        length = min(stop, end) - max(start, begin)
        if length > 0:
            found.append((index, length))
        begin = end
    return found
