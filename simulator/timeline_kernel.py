"""Plays one iteration of a plan, event by event: machine code, without the interpreter lock.

Times count from the start of backward. Everything of an iteration has arrived before the next
backward starts (each variable is used, thus waited for, in the forward pass between), so one
iteration of backward, `step()` and forward is the steady state; more would repeat it.
"""

# numba infers the types of what it compiles, tuples of arrays among them
# mypy: allow-untyped-defs

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

HANDED, STARTING, FLOWING = 0, 1, 2
REPLICATED, OWNER, SHARD = 1, 2, 3  # codes.Update
CHANNELS = 6


class Messages(NamedTuple):
    """The columns of a PlanTable that matter here; see there."""

    first: I64
    operation: NDArray[np.uint8]
    channel: NDArray[np.uint8]
    root: NDArray[np.int16]
    ranks: NDArray[np.uint16]
    wire_bytes: I64
    ready: NDArray[np.int32]
    after: I64
    gate: NDArray[np.int32]
    update: NDArray[np.uint8]
    content: I64
    content_first: I64
    piece_start: I64
    piece_stop: I64


class Costs(NamedTuple):
    """Per kind; see simulator.network.Network. touches f64[K, U]: 1 where utilization is positive.
    in_flight i64[K]: collectives at once in the kind's channel; streamed ones are not counted.
    host, host_byte f64[K]: how long a message keeps the hosts' processors from every other one.
    ahead: seconds that an engine spends on each message of a channel on a host that runs ahead of
    its device, from the start of backward on, while gradients are still computed."""

    kind: NDArray[np.int16]
    startup: F64
    copy: F64
    per_byte: F64
    utilization: F64
    touches: F64
    in_flight: I64
    streamed: NDArray[np.bool_]
    host: F64
    host_byte: F64
    ahead: float


class Compute(NamedTuple):
    """At factor 1; update: seconds per element of a whole optimizer step."""

    forward_start: F64
    forward: float
    backward: float
    ready: F64
    update: float
    world: int


class Flight(NamedTuple):
    """Messages in the air: compact arrays; and state per resource, channel, owner and kind.

    time: when a message's phase ends at its present share (slow) of its links. used f64[U]: demand
    for each resource. cursor, flying, handed, ahead: a channel's next message, collectives in the
    air, whether a message waits for its processor, and until when a host ahead of its device
    prepares messages. processor f64[1]: until when the hosts are busy with messages. clock: until
    when an owner updates. head, tail i64[K]: the first and last streamed message that waits for the
    one of its kind on the wire, -1 without.
    """

    message: I64
    kind: I64
    channel: I64
    phase: I64
    time: F64
    slow: F64
    used: F64
    cursor: I64
    flying: I64
    handed: NDArray[np.bool_]
    ahead: F64
    processor: F64
    clock: F64
    busy: NDArray[np.bool_]
    head: I64
    tail: I64
    follower: I64
    gate_time: F64
    gate_update: F64


@njit(nogil=True, cache=True, _nrt=False, inline="always")
def update_seconds(plan, compute, message):
    """Of the elements that a message carries."""
    if compute.update == 0.0:
        return 0.0
    elements = 0
    content = plan.content[message]
    for piece in range(plan.content_first[content], plan.content_first[content + 1]):
        elements += plan.piece_stop[piece] - plan.piece_start[piece]
    return elements * compute.update


@njit(nogil=True, cache=True, _nrt=False, inline="always")
def next_of(plan, channel, message, stop):
    while message < stop and plan.channel[message] != channel:
        message += 1
    return message


@njit(nogil=True, cache=True, _nrt=False)
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


@njit(nogil=True, cache=True, _nrt=False, inline="always")
def occupy(costs, air, kind, sign):
    for resource in range(len(air.used)):
        air.used[resource] += sign * costs.utilization[kind, resource]


@njit(nogil=True, cache=True, _nrt=False, inline="always")
def enqueue(air, kind, message):
    """Let a streamed message wait for those of its kind: they share their connections."""
    if air.head[kind] < 0:
        air.head[kind] = message
    else:
        air.follower[air.tail[kind]] = message
    air.tail[kind] = message
    air.follower[message] = -1


@njit(nogil=True, cache=True, _nrt=False)
def issue(plan, costs, compute, air, size, begin, stop, now, factor, start, done):
    """Hand over what each channel can, first come first served; returns the messages in the air."""
    for channel in range(CHANNELS):
        message = air.cursor[channel]
        if message >= stop or air.handed[channel]:
            continue
        kind = costs.kind[plan.operation[message], plan.ranks[message], plan.root[message] + 1]
        if not costs.streamed[kind]:
            if air.flying[channel] >= costs.in_flight[kind]:
                continue
            air.flying[channel] += 1
        time = max(now, air.ahead[channel] + costs.ahead)
        if plan.after[message] >= 0:
            before = begin + plan.after[message]
            if done[before] < 0.0:
                if not costs.streamed[kind]:
                    air.flying[channel] -= 1
                continue
            if plan.update[before] >= OWNER:
                owner = plan.root[before] + 1
                cost = update_seconds(plan, compute, message)
                if plan.update[before] == SHARD:
                    cost /= compute.world
                if plan.update[before] == SHARD or plan.root[before] < compute.world:
                    time = max(time, compute.backward * factor)  # `step()` updates
                time = max(time, air.clock[owner]) + cost
                air.clock[owner] = time
        if plan.ready[message] >= 0:
            time = max(time, compute.ready[plan.ready[message]] * factor)
        start[message] = time
        air.ahead[channel] += costs.ahead
        air.handed[channel] = True
        air.message[size] = message
        air.kind[size] = kind
        air.channel[size] = channel
        air.phase[size] = HANDED
        air.time[size] = time
        size += 1
        air.cursor[channel] = next_of(plan, channel, message + 1, stop)
    return size


@njit(nogil=True, cache=True, _nrt=False, inline="always")
def process(plan, costs, air, slot, now, flowing):
    """Let the hosts' processors work on a message that was handed over, after those before it.

    Returns whether it keeps its place: a streamed one may wait for another of its kind.
    """
    message = air.message[slot]
    kind = air.kind[slot]
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


@njit(nogil=True, cache=True, _nrt=False, inline="always")
def flow(plan, costs, air, slot, now, flowing):
    """Put a message on the wire, at full rate until the links are shared anew."""
    kind = air.kind[slot]
    message = air.message[slot]
    air.phase[slot] = FLOWING
    air.slow[slot] = 1.0
    air.time[slot] = now + costs.per_byte[kind] * plan.wire_bytes[message]
    flowing[message] = now
    occupy(costs, air, kind, 1.0)


@njit(nogil=True, cache=True, _nrt=False)
def land(air, size, slot):
    """Take a message out of the air, its place filled by the last one."""
    last = size - 1
    air.message[slot] = air.message[last]
    air.kind[slot] = air.kind[last]
    air.channel[slot] = air.channel[last]
    air.phase[slot] = air.phase[last]
    air.time[slot] = air.time[last]
    air.slow[slot] = air.slow[last]
    return last


@njit(nogil=True, cache=True, _nrt=False)
def communicate(plan, costs, compute, air, index, factor, start, flowing, done):
    """Play all messages of strategy `index`: when each is issued, on the wire, and has arrived.

    Returns False when messages wait for each other in a circle.
    """
    begin, stop = plan.first[index], plan.first[index + 1]
    air.used[:] = 0.0
    air.flying[:] = 0
    air.handed[:] = False
    air.ahead[:] = 0.0
    air.processor[:] = 0.0
    air.clock[:] = 0.0
    air.busy[:] = False
    air.head[:] = -1
    done[begin:stop] = -1.0
    for channel in range(CHANNELS):
        air.cursor[channel] = next_of(plan, channel, begin, stop)
    size = issue(plan, costs, compute, air, 0, begin, stop, 0.0, factor, start, done)
    arrived = begin
    while size > 0:
        slot = 0
        for other in range(1, size):
            if air.time[other] < air.time[slot]:
                slot = other
        now = air.time[slot]
        message, kind, channel = air.message[slot], air.kind[slot], air.channel[slot]
        if air.phase[slot] == HANDED:
            if not process(plan, costs, air, slot, now, flowing):
                size = land(air, size, slot)
            size = issue(plan, costs, compute, air, size, begin, stop, now, factor, start, done)
            continue
        if air.phase[slot] == STARTING:
            flow(plan, costs, air, slot, now, flowing)
            reprice(costs, air, size, now)
            continue
        occupy(costs, air, kind, -1.0)
        done[message] = now
        arrived += 1
        follower = air.head[kind]
        if follower >= 0:
            air.head[kind] = air.follower[follower]
            air.message[slot] = follower
            air.phase[slot] = STARTING
            air.time[slot] = max(now, flowing[follower])
        else:
            air.busy[kind] = False
            if not costs.streamed[kind]:
                air.flying[channel] -= 1
            size = land(air, size, slot)
        reprice(costs, air, size, now)
        size = issue(plan, costs, compute, air, size, begin, stop, now, factor, start, done)
    return arrived == stop


@njit(nogil=True, cache=True, _nrt=False)
def finish(plan, compute, air, index, factor, done):
    """From the messages' arrivals to the end of the next forward pass: `step()`, then gates."""
    begin, stop = plan.first[index], plan.first[index + 1]
    step, updates, gated = compute.backward * factor, 0.0, False
    for message in range(begin, stop):
        cost = 0.0
        if plan.update[message] == REPLICATED:
            cost = update_seconds(plan, compute, message)
        gate = plan.gate[message]
        if gate < 0:
            step = max(step, done[message])
            updates += cost
            continue
        if not gated:
            air.gate_time[:] = 0.0
            air.gate_update[:] = 0.0
            gated = True
        air.gate_time[gate] = max(air.gate_time[gate], done[message])
        air.gate_update[gate] += cost
    now = step + updates
    if gated:
        for operation in range(len(compute.forward_start)):
            reached = now + compute.forward_start[operation] * factor
            now += max(0.0, air.gate_time[operation] - reached) + air.gate_update[operation]
    return now + compute.forward * factor


@njit(nogil=True, cache=True, _nrt=False)
def play(plan, costs, compute, air, factors, start, flowing, done, periods):
    """periods f64[n]: seconds an iteration of every strategy, infinite when it cannot finish.

    factors f64[n]: of the slowest rank. start, flowing, done f64[M]: what `communicate` fills.
    """
    for index in range(len(plan.first) - 1):
        factor = factors[index]
        periods[index] = np.inf
        if communicate(plan, costs, compute, air, index, factor, start, flowing, done):
            periods[index] = finish(plan, compute, air, index, factor, done)
