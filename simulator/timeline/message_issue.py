"""When messages are issued: their order, their gradients, the updates before them. Machine code,
without the interpreter lock; see `timeline_kernel`."""

# numba infers the types of what it compiles, tuples of arrays among them
# mypy: allow-untyped-defs

from numba import njit

from autosync.simulator.timeline.compute_clock import END, ISSUED, moment_of, update_seconds
from autosync.simulator.timeline.message_transfer import HANDED

OWNER, SHARD = 2, 3  # codes.Update
CHANNELS = 6


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


@njit(nogil=True, _nrt=False)
def updated(plan, compute, air, message, before, time):
    """When the owner has updated what `message` carries, from `time` on, after those before it."""
    owner = plan.root[before] + 1
    cost = update_seconds(plan, compute, message)
    if plan.update[before] == SHARD:
        cost /= compute.world
    time = max(time, air.clock[owner]) + cost
    air.clock[owner] = time
    return time


@njit(nogil=True, _nrt=False)
def computed(plan, compute, air, message, begin, factor, time):
    """When a message can be issued, from `time` on, for all it waits for of compute."""
    before = begin + plan.after[message]
    if plan.after[message] >= 0 and follows_step(plan, compute, before):
        time = updated(plan, compute, air, message, before, max(time, air.pace[END]))
    if plan.ready[message] >= 0:
        time = max(time, moment_of(air, compute.ready[plan.ready[message]] * factor))
    return time


@njit(nogil=True, _nrt=False)
def recompute(plan, compute, air, size, begin, factor):
    """Tell anew when messages can be issued, since backward goes on at another pace.

    What follows `step()` was handed over for later than the end of backward, so no update of a
    replica has begun: all are queued again, in the same order.
    """
    for owner in range(compute.world + 1):
        air.clock[owner] = 0.0
    last = -1
    while True:
        following = -1
        for slot in range(size):
            if air.phase[slot] != HANDED or air.turn[slot] <= last:
                continue
            if following < 0 or air.turn[slot] < air.turn[following]:
                following = slot
        if following < 0:
            return
        last = air.turn[following]
        message, earliest = air.message[following], air.earliest[following]
        air.time[following] = computed(plan, compute, air, message, begin, factor, earliest)


@njit(nogil=True, _nrt=False)
def issue(plan, costs, compute, air, size, begin, stop, now, factor, done):
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
            if plan.update[before] >= OWNER and not follows_step(plan, compute, before):
                time = updated(plan, compute, air, message, before, time)
        air.ahead[channel] += costs.ahead
        air.handed[channel] = True
        air.message[size] = message
        air.kind[size] = kind
        air.channel[size] = channel
        air.phase[size] = HANDED
        air.earliest[size] = time
        air.turn[size] = air.tally[ISSUED]
        air.tally[ISSUED] += 1
        air.time[size] = computed(plan, compute, air, message, begin, factor, time)
        size += 1
        air.cursor[channel] = next_of(plan, channel, message + 1, stop)
    return size
