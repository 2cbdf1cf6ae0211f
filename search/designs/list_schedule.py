"""HeteroG's order of execution: list scheduling by upward rank (Yi et al., CoNEXT 2020, 4.2)."""

from heapq import heappop, heappush

import numpy as np

from autosync.domain import Domain
from autosync.search.designs.building_blocks import assemble, collective, ordered
from autosync.search.designs.wire_estimates import (
    ready_seconds,
    tail_seconds,
    wire_seconds,
)
from autosync.search.domain_facts import sent_bytes
from autosync.strategy import AllGather, AllReduce, Schedule, Strategy
from autosync.units import MIB


def list_schedule(domain: Domain) -> Strategy:
    """All-reduces of about 4 MiB; of those that are ready, the highest upward rank first."""
    return _scheduled(domain, AllReduce(0))


def hierarchical_list_schedule(domain: Domain) -> Strategy:
    """`list_schedule` over hierarchical all-reduces."""
    return _scheduled(domain, AllReduce(0, "hierarchical"))


def _scheduled(domain: Domain, synchronizer: AllReduce) -> Strategy:
    """Messages of about 4 MiB, never interrupted: of those that are ready the highest rank first.

    rank(o) = p + the largest rank of its successors: of a message its seconds on the link and, as
    the forward pass runs one operation after another, what is computed from its first use on.
    HeteroG treats the link as a device.
    """
    overlapped = Schedule(overlap_forward=True)
    choices = collective(domain, synchronizer)
    strategy = assemble(domain, choices, schedule=overlapped, limit_bytes=4 * MIB)
    group = [choice.shards[0].group for choice in strategy.choices]
    members: dict[int, list[int]] = {}
    for index, number in enumerate(group):
        members.setdefault(number, []).append(index)
    ready, tails, sizes = ready_seconds(domain), tail_seconds(domain), sent_bytes(domain)
    seconds, rank, waits = {}, {}, {}
    for number, variables in members.items():
        gathered = bool(domain.variables.sparse[variables[0]])
        kind = AllGather(0) if gathered else synchronizer
        size = np.array([sizes[variables].sum()])
        seconds[number] = float(wire_seconds(domain, kind, size)[0])
        rank[number] = seconds[number] + float(tails[variables].max())
        waits[number] = float(ready[variables].max())
    place = {number: i for i, number in enumerate(list_order(waits, seconds, rank))}
    return ordered(strategy, [[place[number]] for number in group])


def list_order(
    ready: dict[int, float], seconds: dict[int, float], rank: dict[int, float]
) -> list[int]:
    """The order of a list schedule on one device: jobs by the times at which they are ready, their
    seconds and their ranks."""
    coming = sorted(ready, key=lambda job: (ready[job], job), reverse=True)
    waiting: list[tuple[float, int]] = []
    order: list[int] = []
    now = 0.0
    while coming or waiting:
        if not waiting:
            now = max(now, ready[coming[-1]])
        while coming and ready[coming[-1]] <= now:
            job = coming.pop()
            heappush(waiting, (-rank[job], job))
        job = heappop(waiting)[1]
        order.append(job)
        now += seconds[job]
    return order
