"""Messages from their issue to the wire: their order, their gradients, the updates before them, the
idle rule, processors and startups. Machine code, without the interpreter lock; see `event_loop`."""

# numba infers the types of what it compiles, tuples of arrays among them
# mypy: allow-untyped-defs

from numba import njit

from autosync.codes import Channel, Update
from autosync.simulator.timeline.compute_clock import (
    END,
    GATHERS_IN_FLIGHT,
    ISSUED,
    REDUCTIONS_IN_FLIGHT,
    REDUCTIONS_LEFT,
    moment_of,
    update_seconds,
)
from autosync.simulator.timeline.link_sharing import (
    ON_WIRE,
    STEPPING,
    least_weight,
    occupy,
    share_connections,
)

HANDED, STARTING = 0, 1
"""Phases before those of `link_sharing`: waits for its processor, or starts up."""
GATHER = int(Channel.GATHER)
ORDERED, ORDERED_VALUES = int(Channel.LOCAL_REDUCE), int(Channel.VALUE)
"""Where a backend has one order, its messages are on these two channels: those that do not wait for
`step()`, then those that do."""
OWNER, SHARD = int(Update.OWNER), int(Update.SHARD)
CHANNELS = len(Channel)


@njit(nogil=True, _nrt=False, inline="always")
def next_of(plan, channel, message, stop):
    while message < stop and plan.channel[message] != channel:
        message += 1
    return message


@njit(nogil=True, _nrt=False, inline="always")
def follows_step(plan, compute, before):
    """Whether the training script's `step()` updates what message `before` reduced."""
    if plan.update[before] == SHARD:
        return True
    return plan.update[before] == OWNER and plan.root[before] < compute.world


@njit(nogil=True, _nrt=False, inline="always")
def deferred(plan, compute, in_flight, message, begin, now):
    """Whether an all-gather waits for an idle wire. One with new values is not handed over before
    `step()`: until then the wire may fill again."""
    if in_flight.tally[REDUCTIONS_LEFT] == 0:
        return False
    if in_flight.tally[REDUCTIONS_IN_FLIGHT] > 0 or in_flight.tally[GATHERS_IN_FLIGHT] > 0:
        return True
    before = begin + plan.after[message]
    return follows_step(plan, compute, before) and now < in_flight.pace[END]


@njit(nogil=True, _nrt=False)
def updated(plan, compute, in_flight, message, before, time):
    """When the owner has updated what `message` carries, from `time` on, after those before it."""
    owner = plan.root[before] + 1
    cost = update_seconds(plan, compute, message)
    if plan.update[before] == SHARD:
        cost /= compute.world
    time = max(time, in_flight.clock[owner]) + cost
    in_flight.clock[owner] = time
    return time


@njit(nogil=True, _nrt=False)
def computed(plan, costs, compute, in_flight, message, begin, factor, time, arrived):
    """When a message can be issued, from `time` on, for all it waits for of compute. In one order
    what it carries was updated beside the messages before it."""
    before = begin + plan.after[message]
    if plan.after[message] >= 0 and follows_step(plan, compute, before):
        since = max(arrived[before] if costs.one_order else time, in_flight.pace[END])
        time = max(time, updated(plan, compute, in_flight, message, before, since))
    if plan.ready[message] >= 0:
        time = max(time, moment_of(in_flight, compute.ready[plan.ready[message]] * factor))
    return time


@njit(nogil=True, _nrt=False)
def recompute(plan, costs, compute, in_flight, size, begin, factor, arrived):
    """Find again when messages can be issued, since backward goes on at another pace.

    What follows `step()` was handed over for later than the end of backward, so no update of a
    replica has begun: all are queued again, in the same order.
    """
    for owner in range(compute.world + 1):
        in_flight.clock[owner] = 0.0
    last = -1
    while True:
        following = -1
        for slot in range(size):
            if in_flight.phase[slot] != HANDED or in_flight.issue_number[slot] <= last:
                continue
            if following < 0 or in_flight.issue_number[slot] < in_flight.issue_number[following]:
                following = slot
        if following < 0:
            return
        last = in_flight.issue_number[following]
        message, earliest = in_flight.message[following], in_flight.earliest[following]
        in_flight.time[following] = computed(
            plan, costs, compute, in_flight, message, begin, factor, earliest, arrived
        )


@njit(nogil=True, _nrt=False)
def issue(plan, costs, compute, in_flight, size, begin, stop, now, factor, arrived):
    """Hand over what each channel can, first come first served; returns the messages in flight."""
    for channel in range(CHANNELS):
        message = in_flight.cursor[channel]
        if message >= stop or in_flight.handed[channel]:
            continue
        if channel == GATHER and deferred(plan, compute, in_flight, message, begin, now):
            continue
        if costs.one_order and channel == ORDERED_VALUES:
            if in_flight.cursor[ORDERED] < stop or in_flight.collectives[ORDERED] > 0:
                continue
            # one thread prepares all messages
            in_flight.ahead[channel] = max(in_flight.ahead[channel], in_flight.ahead[ORDERED])
        message_class = plan.message_class[message]
        if not costs.streamed[message_class]:
            if in_flight.collectives[channel] >= costs.in_flight[message_class]:
                continue
            in_flight.collectives[channel] += 1
        time = max(now, in_flight.ahead[channel] + costs.ahead)
        if plan.after[message] >= 0:
            before = begin + plan.after[message]
            if arrived[before] < 0.0:
                if not costs.streamed[message_class]:
                    in_flight.collectives[channel] -= 1
                continue
            time = max(time, arrived[before])
            if plan.update[before] >= OWNER and not follows_step(plan, compute, before):
                time = updated(plan, compute, in_flight, message, before, time)
        if channel == GATHER:
            for other in range(CHANNELS):  # the idle rule waits for rebuilt gradients, too
                time = max(time, in_flight.landing[other])
        in_flight.ahead[channel] += costs.ahead
        in_flight.handed[channel] = True
        in_flight.message[size] = message
        in_flight.message_class[size] = message_class
        in_flight.channel[size] = channel
        in_flight.phase[size] = HANDED
        in_flight.earliest[size] = time
        in_flight.issue_number[size] = in_flight.tally[ISSUED]
        in_flight.tally[ISSUED] += 1
        in_flight.time[size] = computed(
            plan, costs, compute, in_flight, message, begin, factor, time, arrived
        )
        size += 1
        in_flight.cursor[channel] = next_of(plan, channel, message + 1, stop)
    return size


@njit(nogil=True, _nrt=False)
def count_reductions(plan, in_flight, begin, stop):
    """Before a plan that has such all-gathers is played; reductions are all messages but these and
    what carries new values."""
    for message in range(begin, stop):
        if plan.channel[message] != GATHER and not plan.carries_values[message]:
            in_flight.tally[REDUCTIONS_LEFT] += 1


@njit(nogil=True, _nrt=False, inline="always")
def increment(plan, in_flight, message):
    """Count a message that is issued, as the runtime's `LinkUse` does."""
    if in_flight.tally[REDUCTIONS_LEFT] > 0:
        if plan.channel[message] == GATHER:
            in_flight.tally[GATHERS_IN_FLIGHT] += 1
        elif not plan.carries_values[message]:
            in_flight.tally[REDUCTIONS_IN_FLIGHT] += 1


@njit(nogil=True, _nrt=False, inline="always")
def decrement(plan, in_flight, message):
    """Count a message that has completed. Behind the last reduction nothing is counted any more."""
    if in_flight.tally[REDUCTIONS_LEFT] > 0:
        if plan.channel[message] == GATHER:
            in_flight.tally[GATHERS_IN_FLIGHT] -= 1
        elif not plan.carries_values[message]:
            in_flight.tally[REDUCTIONS_IN_FLIGHT] -= 1
            in_flight.tally[REDUCTIONS_LEFT] -= 1


@njit(nogil=True, _nrt=False, inline="always")
def enqueue(in_flight, queue, message):
    """Let a streamed message wait for those of its queue: they share their connections."""
    if in_flight.head[queue] < 0:
        in_flight.head[queue] = message
    else:
        in_flight.follower[in_flight.tail[queue]] = message
    in_flight.tail[queue] = message
    in_flight.follower[message] = -1


@njit(nogil=True, _nrt=False, inline="always")
def process(plan, costs, in_flight, slot, now, issued, on_wire):
    """Let the hosts' processors work on a message that was handed over, after those before it.

    Returns whether it keeps its place: a streamed one may wait for another of its queue.
    """
    message = in_flight.message[slot]
    queue = plan.queue[message]
    message_class = in_flight.message_class[slot]
    issued[message] = now
    increment(plan, in_flight, message)
    wire_bytes = plan.wire_bytes[message]
    in_flight.handed[in_flight.channel[slot]] = False
    busy_until = (
        max(now, in_flight.processor[0])
        + costs.host[message_class]
        + costs.host_byte[message_class] * wire_bytes
    )
    in_flight.processor[0] = busy_until
    started = busy_until + costs.startup[message_class] + costs.copy[message_class] * wire_bytes
    if costs.streamed[message_class] and in_flight.busy[queue]:
        on_wire[message] = started
        enqueue(in_flight, queue, message)
        return False
    in_flight.busy[queue] = costs.streamed[message_class]
    in_flight.phase[slot] = STARTING
    in_flight.time[slot] = busy_until if costs.stepwise[message_class] else started
    return True


@njit(nogil=True, _nrt=False, inline="always")
def begin_transfer(plan, costs, in_flight, size, slot, now, on_wire):
    """Put a message on its links, at full rate until they are shared anew."""
    message_class, channel = in_flight.message_class[slot], in_flight.channel[slot]
    message = in_flight.message[slot]
    wire_bytes = plan.wire_bytes[message]
    seconds = costs.link[message_class] + costs.per_byte[message_class] * wire_bytes
    in_flight.phase[slot] = ON_WIRE
    in_flight.slow[slot] = in_flight.moving[slot] = in_flight.weight[slot] = 1.0
    in_flight.time[slot] = now + seconds
    on_wire[message] = now
    in_flight.turn[slot] = 0.0
    if costs.stepwise[message_class]:
        in_flight.turn[slot] = wire_bytes
        startup = costs.startup[message_class] + costs.copy[message_class] * wire_bytes
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
    message_class, message = in_flight.message_class[slot], in_flight.message[slot]
    seconds = costs.link[message_class] + costs.per_byte[message_class] * plan.wire_bytes[message]
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
    in_flight.message_class[slot] = in_flight.message_class[last]
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
