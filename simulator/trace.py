"""Every interval of a played plan: for pictures, and for Chrome's trace viewer."""

import json
from dataclasses import dataclass, replace

import numpy as np

from autosync.codes import Channel, Op, Update
from autosync.domain import Domain
from autosync.plan import PlanTable
from autosync.population import Population
from simulator.compute import compute_factors
from simulator.timeline import Played, play_one


@dataclass(frozen=True, slots=True)
class MessageInterval:
    """issued: handed to the channel; on_wire: after its startup, when bytes begin to move.

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
    """phase: forward, backward, update, or wait (for the messages gated at what comes next)."""

    rank: int
    phase: str
    start_seconds: float
    stop_seconds: float


@dataclass(frozen=True, slots=True)
class Trace:
    """Steady-state iterations; 0 is the start of a backward pass on the slowest rank."""

    step_seconds: float
    iterations: int
    messages: tuple[MessageInterval, ...]
    compute: tuple[ComputeInterval, ...]


def simulate_trace(
    plans: PlanTable, population: Population, domain: Domain, index: int = 0, iterations: int = 2
) -> Trace:
    """What happens when in strategy `index`, on every rank."""
    played = play_one(plans, population, domain, index)
    factors = compute_factors(domain, population.layouts[population.layout[index]])
    waits = _waits(plans, played, domain, index)
    once = [
        interval
        for rank, factor in enumerate(factors)
        if factor > 0
        for interval in _steady_rank(waits, domain, rank, float(factor), played.step_seconds)
    ]
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
    return Trace(played.step_seconds, iterations, tuple(messages), tuple(compute))


def chrome_trace(trace: Trace) -> str:
    """JSON for chrome://tracing and ui.perfetto.dev; a process per rank, and the network."""
    ranks = sorted({interval.rank for interval in trace.compute})
    network = ranks[-1] + 1
    events = [_named("process_name", network, 0, "network")]
    events += [_named("thread_name", network, int(c), c.name.lower()) for c in Channel]
    events += [_named("process_name", rank, 0, f"rank {rank}") for rank in ranks]
    events += [
        _event(each.phase, each.rank, 0, each.start_seconds, each.stop_seconds)
        for each in trace.compute
    ]
    events += [_message_event(message, network) for message in trace.messages]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


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


def _messages(plans: PlanTable, played: Played, index: int, base: float) -> list[MessageInterval]:
    first = int(plans.first[index])
    found = []
    for message in range(len(played.arrived)):
        row = first + message
        teams = plans.teams[plans.ranks[row]]
        ranks = {rank for team in teams for rank in team}
        if plans.root[row] >= 0:
            ranks.add(int(plans.root[row]))
        found.append(
            MessageInterval(
                message=message,
                operation=Op(plans.operation[row]).name.lower(),
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
class Waits:
    """When what `step()` and each gate wait for is there, and the updates that follow.

    gates: (operation, arrived, update seconds), in forward order.
    """

    step_arrived: float
    step_update: float
    gates: tuple[tuple[int, float, float], ...]


def _waits(plans: PlanTable, played: Played, domain: Domain, index: int) -> Waits:
    rows = slice(int(plans.first[index]), int(plans.first[index + 1]))
    elements = np.add.reduceat(plans.piece_stop - plans.piece_start, plans.content_first[:-1])
    each = elements[plans.content[rows]] * domain.profile.update_seconds / domain.graph.parameters
    updates = np.where(plans.update[rows] == Update.REPLICATED, each, 0.0)
    gate = plans.gate[rows]
    gates = tuple(
        (int(o), float(played.arrived[gate == o].max()), float(updates[gate == o].sum()))
        for o in np.unique(gate[gate >= 0])
    )
    step = gate < 0
    return Waits(float(played.arrived[step].max(initial=0.0)), float(updates[step].sum()), gates)


def _steady_rank(
    waits: Waits, domain: Domain, rank: int, factor: float, period: float
) -> list[ComputeInterval]:
    """A rank's backward, `step()` and forward. A fast rank is held by the same messages as the
    slowest; how far it runs ahead settles within a few iterations."""
    start = 0.0
    for _ in range(len(waits.gates) + 2):
        intervals = _cycle(waits, domain, rank, factor, start)
        if abs(intervals[-1].stop_seconds - period - start) < 1e-12:
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

    spend("backward", now + timing.backward_seconds * factor)
    spend("wait", waits.step_arrived)
    spend("update", now + waits.step_update)
    reached = 0.0
    for operation, arrived, update in waits.gates:
        offset = float(timing.forward_start[operation])
        spend("forward", now + (offset - reached) * factor)
        reached = offset
        spend("wait", arrived)
        spend("update", now + update)
    spend("forward", now + (timing.forward_seconds - reached) * factor)
    return found
