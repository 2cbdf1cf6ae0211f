"""Messages on their way: processors, startups, shared links. Machine code, without the interpreter
lock; see `event_loop`."""

# numba infers the types of what it compiles, tuples of arrays among them
# mypy: allow-untyped-defs

from numba import njit

from autosync.simulator.timeline.compute_clock import END
from autosync.simulator.timeline.idle_rule import depart

HANDED, STARTING, ON_WIRE = 0, 1, 2
"""Phases: waits for its processor, starts up, or is on the wire."""


@njit(nogil=True, _nrt=False)
def share_links(costs, in_flight, size, now):
    """Share the links anew: where more is asked for than there is, all flows get the same, and a
    message slows down as its slowest ones do."""
    contended = costs.transfer_slowdown > 0.0 and now < in_flight.pace[END]
    flows, per_flow = in_flight.flows, costs.per_flow
    crowded = list_crowded(in_flight)
    for slot in range(size):
        if in_flight.phase[slot] == ON_WIRE:
            kind = in_flight.kind[slot]
            slow = 1.0
            for place in range(crowded):
                resource = in_flight.crowded[place]
                slow = max(slow, flows[resource] * per_flow[kind, resource])
            if contended:
                slow = max(slow, slow_beside_compute(costs, in_flight, size, kind))
            if slow != in_flight.slow[slot]:
                in_flight.time[slot] = (
                    now + (in_flight.time[slot] - now) / in_flight.slow[slot] * slow
                )
                in_flight.slow[slot] = slow


@njit(nogil=True, _nrt=False, inline="always")
def list_crowded(in_flight):
    """List the resources of which more is asked for than there is: few, however many devices there
    are, and every message on the wire looks at all of them. Returns how many."""
    count = 0
    for resource in range(len(in_flight.used)):
        if in_flight.used[resource] > 1.0:
            in_flight.crowded[count] = resource
            count += 1
    return count


@njit(nogil=True, _nrt=False)
def slow_beside_compute(costs, in_flight, size, kind):
    """How many times its seconds a message takes at ports of which compute takes its part.

    What is left of a port is shared in proportion to demand, but no message gets less than an
    equal part or than it wants.
    """
    on_wire, slow = 0, 0.0
    for slot in range(size):
        on_wire += in_flight.phase[slot] == ON_WIRE
    for resource in range(len(in_flight.used)):
        if costs.ports[resource] and costs.utilization[kind, resource] > 0.0:
            wanted = on_wire * costs.utilization[kind, resource]
            slow = max(slow, min(in_flight.used[resource], wanted))
    return slow * (1.0 + costs.transfer_slowdown)


@njit(nogil=True, _nrt=False, inline="always")
def occupy(costs, in_flight, kind, sign):
    for resource in range(len(in_flight.used)):
        in_flight.used[resource] += sign * costs.utilization[kind, resource]
        in_flight.flows[resource] += sign * costs.flows[kind, resource]


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
    in_flight.time[slot] = started
    return True


@njit(nogil=True, _nrt=False, inline="always")
def begin_transfer(plan, costs, in_flight, slot, now, on_wire):
    """Put a message on the wire, at full rate until the links are shared anew."""
    kind = in_flight.kind[slot]
    message = in_flight.message[slot]
    in_flight.phase[slot] = ON_WIRE
    in_flight.slow[slot] = 1.0
    in_flight.time[slot] = now + costs.link[kind] + costs.per_byte[kind] * plan.wire_bytes[message]
    on_wire[message] = now
    occupy(costs, in_flight, kind, 1.0)


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
    in_flight.earliest[slot] = in_flight.earliest[last]
    in_flight.issue_number[slot] = in_flight.issue_number[last]
    return last
