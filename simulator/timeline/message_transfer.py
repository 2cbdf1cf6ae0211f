"""Messages on their way: processors and startups. Machine code, without the interpreter lock; see
`event_loop`."""

# numba infers the types of what it compiles, tuples of arrays among them
# mypy: allow-untyped-defs

from numba import njit

from autosync.simulator.timeline.idle_rule import depart
from autosync.simulator.timeline.link_sharing import (
    ON_WIRE,
    STEPPING,
    least_weight,
    occupy,
    share_connections,
)

HANDED, STARTING = 0, 1
"""Phases before those of `link_sharing`: waits for its processor, or starts up."""


@njit(nogil=True, _nrt=False, inline="always")
def enqueue(in_flight, kind, message):
    """Let a streamed message wait for those of its kind: they share their connections."""
    if in_flight.head[kind] < 0:
        in_flight.head[kind] = message
    else:
        in_flight.follower[in_flight.tail[kind]] = message
    in_flight.tail[kind] = message
    in_flight.follower[message] = -1


@njit(nogil=True, _nrt=False, inline="always")
def process(plan, costs, in_flight, slot, now, issued, on_wire):
    """Let the hosts' processors work on a message that was handed over, after those before it.

    Returns whether it keeps its place: a streamed one may wait for another of its kind.
    """
    message = in_flight.message[slot]
    kind = in_flight.kind[slot]
    issued[message] = now
    depart(plan, in_flight, message)
    wire_bytes = plan.wire_bytes[message]
    in_flight.handed[in_flight.channel[slot]] = False
    busy_until = (
        max(now, in_flight.processor[0]) + costs.host[kind] + costs.host_byte[kind] * wire_bytes
    )
    in_flight.processor[0] = busy_until
    started = busy_until + costs.startup[kind] + costs.copy[kind] * wire_bytes
    if costs.streamed[kind] and in_flight.busy[kind]:
        on_wire[message] = started
        enqueue(in_flight, kind, message)
        return False
    in_flight.busy[kind] = costs.streamed[kind]
    in_flight.phase[slot] = STARTING
    in_flight.time[slot] = busy_until if costs.stepwise[kind] else started
    return True


@njit(nogil=True, _nrt=False, inline="always")
def begin_transfer(plan, costs, in_flight, size, slot, now, on_wire):
    """Put a message on its links, at full rate until they are shared anew."""
    kind, channel = in_flight.kind[slot], in_flight.channel[slot]
    message = in_flight.message[slot]
    wire_bytes = plan.wire_bytes[message]
    seconds = costs.link[kind] + costs.per_byte[kind] * wire_bytes
    in_flight.phase[slot] = ON_WIRE
    in_flight.slow[slot] = in_flight.moving[slot] = in_flight.weight[slot] = 1.0
    in_flight.time[slot] = now + seconds
    on_wire[message] = now
    in_flight.turn[slot] = 0.0
    if costs.stepwise[kind]:
        in_flight.turn[slot] = wire_bytes
        startup = costs.startup[kind] + costs.copy[kind] * wire_bytes
        if startup > 0.0:
            in_flight.phase[slot] = STEPPING
            in_flight.moving[slot] = seconds / (startup + seconds)
            in_flight.weight[slot] = least_weight(in_flight, slot)
            in_flight.time[slot] = now + startup
    occupy(costs, in_flight, slot, 1.0)
    if in_flight.turn[slot] > 0.0 and in_flight.collectives[channel] > 1:
        share_connections(costs, in_flight, size, channel)


@njit(nogil=True, _nrt=False, inline="always")
def outlast_startup(plan, costs, in_flight, slot, now, on_wire):
    """A message in steps has been on its links for as long as its startup is: compute feels the
    rest of it only, as of other messages."""
    kind, message = in_flight.kind[slot], in_flight.message[slot]
    seconds = costs.link[kind] + costs.per_byte[kind] * plan.wire_bytes[message]
    in_flight.phase[slot] = ON_WIRE
    in_flight.time[slot] = now + seconds * in_flight.slow[slot]
    on_wire[message] = now


@njit(nogil=True, _nrt=False)
def remove(in_flight, size, slot):
    """Remove a message that has arrived, or waits in a queue; the last one fills its slot.

    Returns how many are left.
    """
    last = size - 1
    in_flight.message[slot] = in_flight.message[last]
    in_flight.kind[slot] = in_flight.kind[last]
    in_flight.channel[slot] = in_flight.channel[last]
    in_flight.phase[slot] = in_flight.phase[last]
    in_flight.time[slot] = in_flight.time[last]
    in_flight.slow[slot] = in_flight.slow[last]
    in_flight.moving[slot] = in_flight.moving[last]
    in_flight.turn[slot] = in_flight.turn[last]
    in_flight.weight[slot] = in_flight.weight[last]
    in_flight.earliest[slot] = in_flight.earliest[last]
    in_flight.issue_number[slot] = in_flight.issue_number[last]
    return last
