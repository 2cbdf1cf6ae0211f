"""When messages are issued: their order, their gradients, the updates before them. Machine code,
without the interpreter lock; see `event_loop`."""

# numba infers the types of what it compiles, tuples of arrays among them
# mypy: allow-untyped-defs

from numba import njit

from autosync.codes import Channel, Update
from autosync.simulator.timeline.compute_clock import (
    END,
    FIRST_IN_FLIGHT,
    FIRST_MISSING,
    GATHERS_IN_FLIGHT,
    ISSUED,
    moment_of,
    update_seconds,
)
from autosync.simulator.timeline.idle_rule import GATHER
from autosync.simulator.timeline.message_transfer import HANDED

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
def kept_back(plan, compute, in_flight, message, begin, now):
    """Whether an all-gather waits for an idle wire. One with new values is not handed over before
    `step()`: until then the wire may fill again."""
    if in_flight.tally[FIRST_MISSING] == 0:
        return False
    if in_flight.tally[FIRST_IN_FLIGHT] > 0 or in_flight.tally[GATHERS_IN_FLIGHT] > 0:
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
def computed(plan, compute, in_flight, message, begin, factor, time):
    """When a message can be issued, from `time` on, for all it waits for of compute."""
    before = begin + plan.after[message]
    if plan.after[message] >= 0 and follows_step(plan, compute, before):
        time = updated(plan, compute, in_flight, message, before, max(time, in_flight.pace[END]))
    if plan.ready[message] >= 0:
        time = max(time, moment_of(in_flight, compute.ready[plan.ready[message]] * factor))
    return time


@njit(nogil=True, _nrt=False)
def recompute(plan, compute, in_flight, size, begin, factor):
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
            plan, compute, in_flight, message, begin, factor, earliest
        )


@njit(nogil=True, _nrt=False)
def issue(plan, costs, compute, in_flight, size, begin, stop, now, factor, arrived):
    """Hand over what each channel can, first come first served; returns the messages in flight."""
    for channel in range(CHANNELS):
        message = in_flight.cursor[channel]
        if message >= stop or in_flight.handed[channel]:
            continue
        if channel == GATHER and kept_back(plan, compute, in_flight, message, begin, now):
            continue
        kind = costs.kind[plan.operation[message], plan.ranks[message], plan.root[message] + 1]
        if not costs.streamed[kind]:
            if in_flight.collectives[channel] >= costs.in_flight[kind]:
                continue
            in_flight.collectives[channel] += 1
        time = max(now, in_flight.ahead[channel] + costs.ahead)
        if plan.after[message] >= 0:
            before = begin + plan.after[message]
            if arrived[before] < 0.0:
                if not costs.streamed[kind]:
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
        in_flight.kind[size] = kind
        in_flight.channel[size] = channel
        in_flight.phase[size] = HANDED
        in_flight.earliest[size] = time
        in_flight.issue_number[size] = in_flight.tally[ISSUED]
        in_flight.tally[ISSUED] += 1
        in_flight.time[size] = computed(plan, compute, in_flight, message, begin, factor, time)
        size += 1
        in_flight.cursor[channel] = next_of(plan, channel, message + 1, stop)
    return size
