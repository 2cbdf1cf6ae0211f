"""Where the time of a measured iteration goes: on its slowest rank, and on its busiest link.

Both accounts add up to the iteration. On the rank: profiled compute, compute beyond it, updates,
waits. On the link: its bytes at line rate; what messages under way take beyond that (startups,
links and processors they share); and the seconds in which nothing is under way on it, by what could
have been. All intervals are folded into one period, as in steady state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.plan import Plan
from autosync.plan.plan_table import PlanTable
from autosync.population import encode
from autosync.simulator.cost.compute_time import compute_factors
from autosync.simulator.cost.network import network_of
from autosync.simulator.limit import Limit
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.iteration_trace import IterationTrace, common_seconds, union
from autosync.simulator.timeline.trace_comparison import measured_iteration
from autosync.strategy import Strategy, even_replicas
from autosync.trials.contract import MeasuredTimeline, RankTimeline

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class IterationAccounts:
    """Seconds of one iteration. The first four and step_seconds: of the slowest rank; their sum is
    its own period, which is the iteration's within what ranks drift.

    link: the busiest, by its bytes. Its own six add up to step_seconds:
    line_rate_seconds: its bytes at the file's rate. startup_seconds: messages are under way, beyond
        that (negative where the link is faster than the file).
    held_seconds: nothing is under way, and a second half could be, whose first half has arrived.
    merging_seconds: else, and a gradient is there whose message waits for others.
    late_seconds: else, and a message whose gradients are all there is not yet under way.
    nothing_seconds: else: there is nothing to send.
    extra_seconds: of line_rate_seconds, what some other choice of synchronizers spares.
    """

    step_seconds: float
    limit_seconds: float
    compute_seconds: float
    slower_compute_seconds: float
    update_seconds: float
    wait_seconds: float
    link: str
    line_rate_seconds: float
    startup_seconds: float
    held_seconds: float
    merging_seconds: float
    late_seconds: float
    nothing_seconds: float
    extra_seconds: float
    messages: int


def iteration_accounts(
    timeline: MeasuredTimeline, strategy: Strategy, plan: Plan, domain: Domain, limit: Limit
) -> IterationAccounts:
    """Of one recorded iteration. plan: of the strategy, whose messages were recorded.

    Raises:
        ValueError: no messages were recorded, as under torch's own DDP.
    """
    if any(rank.messages is None for rank in timeline.ranks):
        raise ValueError("no messages were recorded: torch's DDP does not say when they travel")
    trace = measured_iteration(timeline, plan)
    step = timeline.step_seconds
    spent = [phase_seconds(rank, step) for rank in timeline.ranks]
    slowest = max(range(len(spent)), key=lambda r: spent[r]["forward"] + spent[r]["backward"])
    factor = float(compute_factors(domain, even_replicas(domain.world_size))[slowest])
    profiled = factor * (domain.timing.forward_seconds + domain.timing.backward_seconds)
    computed = spent[slowest]["forward"] + spent[slowest]["backward"]
    link, held = busiest_link(strategy, domain)
    seen = [message.message for message in trace.messages]
    bytes_seconds = held[seen]
    rows = [index for index, seconds in enumerate(bytes_seconds) if seconds > 0]
    waits = waiting_intervals(timeline, trace, plan, domain, rows)
    flying = folded(
        [(trace.messages[i].issued_seconds, trace.messages[i].arrived_seconds) for i in rows], step
    )
    idle = complement(flying, step)
    parts, before = [], np.empty((0, 2))
    for intervals in waits:
        joined = np.concatenate([before, folded(intervals, step)])
        joined = union(joined[:, 0], joined[:, 1])
        parts.append(common_seconds(idle, joined) - common_seconds(idle, before))
        before = joined
    idle_seconds, line_rate = length(idle), float(bytes_seconds.sum())
    return IterationAccounts(
        step_seconds=step,
        limit_seconds=limit.seconds,
        compute_seconds=profiled,
        slower_compute_seconds=computed - profiled,
        update_seconds=spent[slowest]["update"],
        wait_seconds=spent[slowest]["wait"],
        link=link,
        line_rate_seconds=line_rate,
        startup_seconds=step - idle_seconds - line_rate,
        held_seconds=parts[0],
        merging_seconds=parts[1],
        late_seconds=parts[2],
        nothing_seconds=idle_seconds - sum(parts),
        extra_seconds=line_rate - limit.transfer_seconds,
        messages=len(seen),
    )


def median_accounts(found: Sequence[IterationAccounts]) -> IterationAccounts:
    """Of several recorded iterations of one strategy: the one whose seconds are the median."""
    return sorted(found, key=lambda each: each.step_seconds)[len(found) // 2]


def phase_seconds(rank: RankTimeline, step_seconds: float) -> dict[str, float]:
    """What a rank did from its forward start over one period, by phase."""
    compute = rank.compute
    begin = min(compute.start_seconds)
    spent = dict.fromkeys(("forward", "backward", "update", "wait"), 0.0)
    for phase, start, stop in zip(
        compute.phase, compute.start_seconds, compute.stop_seconds, strict=True
    ):
        spent[phase] += max(0.0, min(stop, begin + step_seconds) - start)
    return spent


def busiest_link(strategy: Strategy, domain: Domain) -> tuple[str, F64]:
    """The link that the plan's bytes hold longest, and the seconds that each message holds it,
    `(messages,)`."""
    plans: PlanTable = compile_plans_fast(encode([strategy], domain), domain)
    network = network_of(domain.cluster, plans.teams)
    each = plans.wire_bytes[:, None] * network.load[network.kinds_of(plans)]
    busiest = int(each.sum(axis=0).argmax())
    held: F64 = each[:, busiest]
    return network.resources[busiest], held


def waiting_intervals(
    timeline: MeasuredTimeline,
    trace: IterationTrace,
    plan: Plan,
    domain: Domain,
    rows: Sequence[int],
) -> tuple[list[tuple[float, float]], list[tuple[float, float]], list[tuple[float, float]]]:
    """When messages (`rows` of the trace) could have been under way and were not: second halves,
    those that still waited for other gradients, those that waited for nothing.

    A gradient is there when its backward is done by the profile, counted from the measured start of
    backward on the slowest rank.
    """
    begin = max(
        start
        for rank in timeline.ranks
        for start in [min(phase_starts(rank, "backward"), default=0.0)]
    )
    factor = float(compute_factors(domain, even_replicas(domain.world_size)).max())
    ready = begin + factor * domain.timing.ready_seconds[domain.variables.ready]
    arrived = {message.message: message.arrived_seconds for message in trace.messages}
    held, merging, late = [], [], []
    for row in rows:
        message = trace.messages[row]
        source = plan.messages[message.message]
        if source.after in arrived:
            held.append((arrived[source.after], message.issued_seconds))
            continue
        members = [plan.shards[piece.shard].variable for piece in plan.buckets[source.bucket]]
        first, last = float(ready[members].min()), float(ready[members].max())
        merging.append((first, min(last, message.issued_seconds)))
        late.append((last, message.issued_seconds))
    return held, merging, late


def phase_starts(rank: RankTimeline, phase: str) -> list[float]:
    compute = rank.compute
    both = zip(compute.phase, compute.start_seconds, strict=True)
    return [start for name, start in both if name == phase]


def folded(intervals: Sequence[tuple[float, float]], period: float) -> F64:
    """The union of intervals as they fall into one period, `(n, 2)`; an empty or negative one is
    left out."""
    found = []
    for start, stop in intervals:
        if stop <= start:
            continue
        if stop - start >= period:
            return np.array([[0.0, period]])
        begin = start % period
        end = begin + stop - start
        found.append((begin, min(end, period)))
        if end > period:
            found.append((0.0, end - period))
    if not found:
        return np.empty((0, 2))
    both = np.array(found)
    return union(both[:, 0], both[:, 1])


def complement(intervals: F64, period: float) -> F64:
    """What a period has beside intervals that are in order and apart, `(n, 2)`."""
    edges = np.concatenate([[0.0], intervals.ravel(), [period]]).reshape(-1, 2)
    return edges[edges[:, 1] > edges[:, 0]]


def length(intervals: F64) -> float:
    return float((intervals[:, 1] - intervals[:, 0]).sum())


COLUMNS = {
    "messages": "messages",
    "slower_compute_seconds": "compute beyond its profile",
    "update_seconds": "updates",
    "wait_seconds": "waits",
    "line_rate_seconds": "bytes at line rate",
    "extra_seconds": "of these beyond the least",
    "startup_seconds": "startups, shared links",
    "held_seconds": "second halves held",
    "merging_seconds": "waits for other gradients",
    "late_seconds": "sent late",
    "nothing_seconds": "nothing to send",
}


def accounts_table(found: dict[str, IterationAccounts]) -> str:
    """A line a domain, in ms: first its slowest rank, then its busiest link."""
    assert set(COLUMNS) <= {field.name for field in fields(IterationAccounts)}
    lines = [
        f"| domain | measured | limit | beyond it | {' | '.join(COLUMNS.values())} | link |",
        f"|---|---|---|---|{'---|' * len(COLUMNS)}---|",
    ]
    for name, each in found.items():
        cells = [
            f"{getattr(each, column)}"
            if column == "messages"
            else f"{getattr(each, column) * 1e3:.1f}"
            for column in COLUMNS
        ]
        step, limit = each.step_seconds * 1e3, each.limit_seconds * 1e3
        head = f"| {name} | {step:.1f} | {limit:.1f} | {step - limit:.1f}"
        lines.append(f"{head} | {' | '.join(cells)} | {each.link} |")
    return "\n".join(lines)
