"""Every interval of an iteration, predicted or measured: what pictures are drawn from, and traces
as Chrome's trace viewer and ui.perfetto.dev read them.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosync.codes import Channel, Op, Update
from autosync.domain import Domain
from autosync.plan import PlanTable
from autosync.population import Population
from autosync.simulator.backends import backend_of
from autosync.simulator.cost.compute_time import compute_factors, update_seconds_of_buckets
from autosync.simulator.cost.message_classes import SERVER_OPERATIONS
from autosync.simulator.cost.network import network_of
from autosync.simulator.extension_prediction import restated_domain, slowdown
from autosync.simulator.numba_cache import Kernel
from autosync.simulator.timeline.compute_clock import advance
from autosync.simulator.timeline.timeline_simulator import Played, play_one

F64 = NDArray[np.float64]

_advance = Kernel(advance, allocates=False)

ROUNDING = 1e-12
"""Seconds that sums of seconds may be off."""


def union(starts: F64, stops: F64) -> F64:
    """The intervals in which at least one of the given ones runs: `(intervals, 2)` seconds, in
    order and apart."""
    order = np.argsort(starts, kind="stable")
    reached = np.maximum.accumulate(stops[order]) if len(order) else stops
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = starts[order][1:] > reached[:-1]
    ends = np.roll(begins, -1)
    return np.column_stack([starts[order][begins], reached[ends]])


def common_seconds(some: F64, others: F64) -> float:
    """Of two sets of intervals that are apart, `(n, 2)` and `(m, 2)`."""
    begins = np.maximum(some[:, :1], others[:, 0])
    ends = np.minimum(some[:, 1:], others[:, 1])
    return float(np.maximum(ends - begins, 0.0).sum())


@dataclass(frozen=True, slots=True)
class MessageInterval:
    """issued: handed to the channel; on_wire: after its startup, when bytes begin to move (on gloo
    a ring's move during its startup, too); arrived: on every rank. Measured, issued is when the
    last of its ranks had handed it to the backend, and on_wire the same: no clock shows when bytes
    begin to move.

    message: its row in the plan. ranks: who takes part.
    """

    message: int
    operation: str
    channel: str
    wire_bytes: int
    ranks: tuple[int, ...]
    issued_seconds: float
    on_wire_seconds: float
    arrived_seconds: float


@dataclass(frozen=True, slots=True)
class ComputeInterval:
    """phase: forward, backward, update, or wait (for the messages gated at what comes next).
    Forward and backward are as long as they take beside the messages on the wire."""

    rank: int
    phase: str
    start_seconds: float
    stop_seconds: float


@dataclass(frozen=True, slots=True)
class DealInterval:
    """A collective of all ranks at the border of a placed module: an all-to-all of samples or their
    gradients, or an all-gather of how many there are. issued: by the last of the ranks; arrived: on
    all. wire_bytes: of all ranks together."""

    operation: str
    wire_bytes: int
    issued_seconds: float
    arrived_seconds: float


@dataclass(frozen=True, slots=True)
class IterationTrace:
    """Steady-state iterations. `simulate_trace` counts from the start of a backward pass on the
    slowest rank, `predicted_iteration` and `measured_iteration` from the start of a forward pass.

    forward_seconds: when the slowest rank begins the first forward pass. deals: as measured, in
        order; predicted, they are part of compute.
    """

    step_seconds: float
    iterations: int
    messages: tuple[MessageInterval, ...]
    compute: tuple[ComputeInterval, ...]
    forward_seconds: float
    deals: tuple[DealInterval, ...] = ()


def simulate_trace(
    plans: PlanTable, population: Population, domain: Domain, index: int = 0, iterations: int = 2
) -> IterationTrace:
    """What happens when in strategy `index`, on every rank."""
    played = play_one(plans, population, domain, index)
    domain = restated_domain(domain, population, index)
    factors = compute_factors(domain, population.layouts[population.layout[index]])
    factors = factors * slowdown(domain, population, plans, index)
    if played.spans:  # collectives in both passes: ranks go on together
        once = [
            ComputeInterval(rank, *span)
            for rank, factor in enumerate(factors)
            if factor > 0
            for span in played.spans
        ]
        forward = played.forward_start
    else:
        once, forward = _once(plans, played, domain, index, factors)
    messages, compute = [], []
    for iteration in range(iterations):
        shift = iteration * played.step_seconds
        messages += _messages(plans, played, index, shift)
        compute += [
            ComputeInterval(
                each.rank, each.phase, each.start_seconds + shift, each.stop_seconds + shift
            )
            for each in once
        ]
    return IterationTrace(played.step_seconds, iterations, tuple(messages), tuple(compute), forward)


def _once(
    plans: PlanTable, played: Played, domain: Domain, index: int, factors: F64
) -> tuple[list[ComputeInterval], float]:
    """An iteration of every rank, and when the slowest one begins its forward pass."""
    waits = _waits(plans, played, domain, index)
    once = [
        interval
        for rank, factor in enumerate(factors)
        if factor > 0
        for interval in _steady_rank(waits, domain, rank, float(factor), played.step_seconds)
    ]
    slowest = waits.pace.after(0.0, float(factors.max()) * domain.timing.backward_seconds)
    return once, max(slowest, waits.step_arrived) + waits.step_update


def predicted_iteration(
    plans: PlanTable, population: Population, domain: Domain, index: int = 0
) -> IterationTrace:
    """What a `MeasuredTimeline` shows: from the forward start of the slowest rank over one
    iteration to the end of the next forward pass, with the messages of that iteration."""
    two = simulate_trace(plans, population, domain, index, iterations=2)
    zero, end = two.forward_seconds, 2 * two.step_seconds
    return IterationTrace(
        step_seconds=two.step_seconds,
        iterations=1,
        messages=tuple(
            replace(
                message,
                issued_seconds=message.issued_seconds - zero,
                on_wire_seconds=message.on_wire_seconds - zero,
                arrived_seconds=message.arrived_seconds - zero,
            )
            for message in two.messages[len(two.messages) // 2 :]
        ),
        compute=tuple(
            replace(
                each,
                start_seconds=max(each.start_seconds, zero) - zero,
                stop_seconds=min(each.stop_seconds, end) - zero,
            )
            for each in two.compute
            if each.stop_seconds > zero + ROUNDING and each.start_seconds < end
        ),
        forward_seconds=0.0,
    )


def _messages(plans: PlanTable, played: Played, index: int, base: float) -> list[MessageInterval]:
    first = int(plans.first[index])
    found = []
    for message in range(len(played.arrived)):
        row = first + message
        operation = Op(plans.operation[row])
        teams = plans.teams[plans.ranks[row]]
        ranks = {rank for team in teams for rank in team}
        if operation in SERVER_OPERATIONS:  # else nodes without the root do without it
            ranks.add(int(plans.root[row]))
        found.append(
            MessageInterval(
                message=message,
                operation=operation.name.lower(),
                channel=Channel(plans.channel[row]).name.lower(),
                wire_bytes=int(plans.wire_bytes[row]),
                ranks=tuple(sorted(ranks)),
                issued_seconds=base + float(played.issued[message]),
                on_wire_seconds=base + float(played.on_wire[message]),
                arrived_seconds=base + float(played.arrived[message]),
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class Pace:
    """Compute takes 1 + slowdown times its seconds while it feels a message.

    wired: `(intervals, 2)` seconds, in order and apart: when it feels one (see `felt_early` of
        `BackendModel`).
    """

    slowdown: float
    wired: F64

    def after(self, start: float, seconds: float) -> float:
        """When compute that begins at `start`, of so many seconds without messages, is done."""
        if not self.slowdown:
            return start + seconds
        slow = 1.0 + self.slowdown
        return float(_advance(self.wired, len(self.wired), 0, start, seconds, slow)[0])


@dataclass(frozen=True, slots=True)
class Waits:
    """When what `step()` and each gate wait for is there, and the updates that follow.

    gates: (operation, arrived, update seconds), in forward order. pace: of compute meanwhile.
    """

    step_arrived: float
    step_update: float
    gates: tuple[tuple[int, float, float], ...]
    pace: Pace


def _waits(plans: PlanTable, played: Played, domain: Domain, index: int) -> Waits:
    rows = slice(int(plans.first[index]), int(plans.first[index + 1]))
    each = update_seconds_of_buckets(plans, domain)[plans.bucket[rows]]
    updates = np.where(plans.update[rows] == Update.REPLICATED, each, 0.0)
    gate = plans.gate[rows]
    gates = tuple(
        (int(o), float(played.arrived[gate == o].max()), float(updates[gate == o].sum()))
        for o in np.unique(gate[gate >= 0])
    )
    step = gate < 0
    return Waits(
        float(played.arrived[step].max(initial=0.0)),
        float(updates[step].sum()),
        gates,
        _pace(played, domain, network_of(domain.cluster, plans.teams).compute_slowdown),
    )


def _pace(played: Played, domain: Domain, slowdown: float) -> Pace:
    """Fast ranks begin backward while the iteration before ends with its own messages."""
    felt = played.issued if backend_of(domain.cluster).felt_early else played.on_wire
    wired = union(felt, played.left)
    return Pace(slowdown, np.concatenate([wired - played.step_seconds, wired]))


def _steady_rank(
    waits: Waits, domain: Domain, rank: int, factor: float, period: float
) -> list[ComputeInterval]:
    """A rank's backward, `step()` and forward. A fast rank is held by the same messages as the
    slowest; how far it runs ahead settles within a few iterations."""
    start = 0.0
    for _ in range(len(waits.gates) + 2):
        intervals = _cycle(waits, domain, rank, factor, start)
        if abs(intervals[-1].stop_seconds - period - start) < ROUNDING:
            break
        start = intervals[-1].stop_seconds - period
    return intervals


def _cycle(
    waits: Waits, domain: Domain, rank: int, factor: float, start: float
) -> list[ComputeInterval]:
    timing = domain.timing
    found: list[ComputeInterval] = []
    now = start

    def spend(phase: str, until: float) -> None:
        nonlocal now
        if until <= now:
            return
        if found and found[-1].phase == phase:
            found.append(replace(found.pop(), stop_seconds=until))
        else:
            found.append(ComputeInterval(rank, phase, now, until))
        now = until

    spend("backward", waits.pace.after(now, timing.backward_seconds * factor))
    spend("wait", waits.step_arrived)
    spend("update", now + waits.step_update)
    reached = 0.0
    for operation, arrived, update in waits.gates:
        offset = float(timing.forward_start[operation])
        spend("forward", waits.pace.after(now, (offset - reached) * factor))
        reached = offset
        spend("wait", arrived)
        spend("update", now + update)
    spend("forward", waits.pace.after(now, (timing.forward_seconds - reached) * factor))
    return found


DEALS = 1 + max(Channel)
"""Their thread, behind those of the channels."""


def chrome_trace(**traces: IterationTrace) -> str:
    """JSON: of every trace a process per rank, and the network, under the trace's name.

    The traces' zeros coincide: `predicted` and `measured` iterations lie one under the other.
    """
    events: list[dict[str, object]] = []
    first = 0
    for name, trace in traces.items():
        events += _events(name, trace, first)
        first += 1 + len({interval.rank for interval in trace.compute})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _events(name: str, trace: IterationTrace, first: int) -> Iterator[dict[str, object]]:
    """Processes are numbered from `first`."""
    ranks = sorted({interval.rank for interval in trace.compute})
    process = {rank: first + place for place, rank in enumerate(ranks)}
    network = first + len(ranks)
    yield _named("process_name", network, 0, f"{name}: network")
    for channel in Channel:
        yield _named("thread_name", network, int(channel), channel.name.lower())
    if trace.deals:
        yield _named("thread_name", network, DEALS, "deals of placed modules")
    for rank in ranks:
        yield _named("process_name", process[rank], 0, f"{name}: rank {rank}")
    for each in trace.compute:
        yield _event(each.phase, process[each.rank], 0, each.start_seconds, each.stop_seconds)
    for message in trace.messages:
        yield _message_event(message, network)
    for deal in trace.deals:
        event = _event(deal.operation, network, DEALS, deal.issued_seconds, deal.arrived_seconds)
        yield {**event, "args": {"wire_bytes": deal.wire_bytes}}


def _message_event(message: MessageInterval, network: int) -> dict[str, object]:
    event = _event(
        f"{message.operation} {message.message}",
        network,
        int(Channel[message.channel.upper()]),
        message.issued_seconds,
        message.arrived_seconds,
    )
    event["args"] = {
        "wire_bytes": message.wire_bytes,
        "ranks": list(message.ranks),
        "startup_us": (message.on_wire_seconds - message.issued_seconds) * 1e6,
    }
    return event


def _event(name: str, process: int, thread: int, start: float, stop: float) -> dict[str, object]:
    return {
        "name": name,
        "ph": "X",
        "pid": process,
        "tid": thread,
        "ts": start * 1e6,
        "dur": (stop - start) * 1e6,
    }


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, object]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
