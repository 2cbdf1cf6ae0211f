"""Messages on their way: processors, startups, shared links. Machine code, without the interpreter
lock; see `timeline_kernel`."""

# numba infers the types of what it compiles, tuples of arrays among them
# mypy: allow-untyped-defs

from numba import njit

HANDED, STARTING, FLOWING = 0, 1, 2
"""Phases: waits for its processor, starts up, or is on the wire."""


@njit(nogil=True, _nrt=False)
def reprice(costs, air, size, now):
    """Share the links anew: a message slows down as its most wanted resource is oversubscribed."""
    used = air.used
    touches = costs.touches
    for slot in range(size):
        if air.phase[slot] == FLOWING:
            kind = air.kind[slot]
            slow = 1.0
            for resource in range(len(used)):
                slow = max(slow, used[resource] * touches[kind, resource])
            if slow != air.slow[slot]:
                air.time[slot] = now + (air.time[slot] - now) / air.slow[slot] * slow
                air.slow[slot] = slow


@njit(nogil=True, _nrt=False, inline="always")
def occupy(costs, air, kind, sign):
    for resource in range(len(air.used)):
        air.used[resource] += sign * costs.utilization[kind, resource]


@njit(nogil=True, _nrt=False, inline="always")
def enqueue(air, kind, message):
    """Let a streamed message wait for those of its kind: they share their connections."""
    if air.head[kind] < 0:
        air.head[kind] = message
    else:
        air.follower[air.tail[kind]] = message
    air.tail[kind] = message
    air.follower[message] = -1


@njit(nogil=True, _nrt=False, inline="always")
def process(plan, costs, air, slot, now, start, flowing):
    """Let the hosts' processors work on a message that was handed over, after those before it.

    Returns whether it keeps its place: a streamed one may wait for another of its kind.
    """
    message = air.message[slot]
    kind = air.kind[slot]
    start[message] = now
    wire_bytes = plan.wire_bytes[message]
    air.handed[air.channel[slot]] = False
    busy_until = max(now, air.processor[0]) + costs.host[kind] + costs.host_byte[kind] * wire_bytes
    air.processor[0] = busy_until
    started = busy_until + costs.startup[kind] + costs.copy[kind] * wire_bytes
    if costs.streamed[kind] and air.busy[kind]:
        flowing[message] = started
        enqueue(air, kind, message)
        return False
    air.busy[kind] = costs.streamed[kind]
    air.phase[slot] = STARTING
    air.time[slot] = started
    return True


@njit(nogil=True, _nrt=False, inline="always")
def flow(plan, costs, air, slot, now, flowing):
    """Put a message on the wire, at full rate until the links are shared anew."""
    kind = air.kind[slot]
    message = air.message[slot]
    air.phase[slot] = FLOWING
    air.slow[slot] = 1.0
    air.time[slot] = now + costs.per_byte[kind] * plan.wire_bytes[message]
    flowing[message] = now
    occupy(costs, air, kind, 1.0)


@njit(nogil=True, _nrt=False)
def land(air, size, slot):
    """Take a message out of the air, its place filled by the last one."""
    last = size - 1
    air.message[slot] = air.message[last]
    air.kind[slot] = air.kind[last]
    air.channel[slot] = air.channel[last]
    air.phase[slot] = air.phase[last]
    air.time[slot] = air.time[last]
    air.slow[slot] = air.slow[last]
    air.earliest[slot] = air.earliest[last]
    air.turn[slot] = air.turn[last]
    return last
