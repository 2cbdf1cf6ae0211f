"""Plays one iteration of a plan, event by event: machine code, without the interpreter lock.

Times count from the start of backward. Everything of an iteration has arrived before the next
backward starts (each variable is used, thus waited for, in the forward pass between), so one
iteration of backward, `step()` and forward is the steady state; more would repeat it.
"""

# numba infers the types of what it compiles, tuples of arrays among them
# mypy: allow-untyped-defs

import numpy as np
from numba import njit

from autosync.simulator.numba_cache import cached_kernel
from autosync.simulator.timeline.compute_clock import (
    END,
    change_pace,
    finish,
    start_clock,
    wire_empties,
    wire_fills,
    worked_on,
)
from autosync.simulator.timeline.link_sharing import (
    ON_WIRE,
    occupy,
    share_connections,
    share_links,
)
from autosync.simulator.timeline.message_issue import (
    CHANNELS,
    GATHER,
    HANDED,
    STARTING,
    begin_transfer,
    count_reductions,
    decrement,
    issue,
    next_of,
    outlast_startup,
    process,
    recompute,
    remove,
)
from autosync.simulator.timeline.timeline_arrays import (
    F64,
    I64,
    ComputeArrays,
    CostArrays,
    InFlight,
    MessageArrays,
)

MISSING, WHOLE = -1.0, -2.0
"""In place of when a message arrived: it is not there, or it is and waits for one before it."""


@njit(nogil=True, _nrt=False)
def clear(in_flight):
    """Nothing is in flight, and nothing is held."""
    in_flight.used[:] = 0.0
    in_flight.flows[:] = 0.0
    in_flight.collectives[:] = 0
    in_flight.handed[:] = False
    in_flight.ahead[:] = 0.0
    in_flight.landing[:] = 0.0
    in_flight.processor[:] = 0.0
    in_flight.clock[:] = 0.0
    in_flight.busy[:] = False
    in_flight.head[:] = -1


@njit(nogil=True, _nrt=False)
def earliest_slot(in_flight, size):
    """The slot whose phase ends first; of equals the lowest."""
    slot = 0
    for other in range(1, size):
        if in_flight.time[other] < in_flight.time[slot]:
            slot = other
    return slot


@njit(nogil=True, _nrt=False)
def complete(plan, costs, compute, in_flight, message, channel, stop, now, factor, arrived):
    """A message is whole on every rank; returns how many have landed by that.

    In order, a message lands when all before it on its channel have. One of factors has arrived
    when its gradients are rebuilt, which a channel does for one message at a time.
    """
    in_flight.left[message] = now
    if not costs.in_order:
        arrived[message] = worked_on(plan, compute, in_flight, message, channel, now, factor)
        decrement(plan, in_flight, message)
        return 1
    arrived[message] = WHOLE
    oldest, landed = in_flight.oldest[channel], 0
    while oldest < stop and arrived[oldest] == WHOLE:
        arrived[oldest] = worked_on(plan, compute, in_flight, oldest, channel, now, factor)
        decrement(plan, in_flight, oldest)
        landed += 1
        oldest = next_of(plan, channel, oldest + 1, stop)
    in_flight.oldest[channel] = oldest
    return landed


@njit(nogil=True, _nrt=False)
def communicate(plan, costs, compute, in_flight, index, factor, issued, on_wire, arrived):
    """Play all messages of strategy `index`: when each is issued, on the wire, and has arrived.

    Returns False when messages wait for each other in a circle.
    """
    begin, stop = plan.first[index], plan.first[index + 1]
    clear(in_flight)
    start_clock(compute, in_flight, factor)
    slowing, slow = compute.slowdown > 0.0, 1.0 + compute.slowdown
    computes = costs.transfer_slowdown > 0.0
    arrived[begin:stop] = MISSING
    for channel in range(CHANNELS):
        in_flight.cursor[channel] = next_of(plan, channel, begin, stop)
        in_flight.oldest[channel] = in_flight.cursor[channel]
    if in_flight.cursor[GATHER] < stop:
        count_reductions(plan, in_flight, begin, stop)
    size = issue(plan, costs, compute, in_flight, 0, begin, stop, 0.0, factor, arrived)
    count = begin
    while size > 0:
        slot = earliest_slot(in_flight, size)
        now = in_flight.time[slot]
        if computes and now >= in_flight.pace[END]:
            computes = False
            share_links(costs, in_flight, size, in_flight.pace[END])
            continue
        message, message_class, channel = (
            in_flight.message[slot],
            in_flight.message_class[slot],
            in_flight.channel[slot],
        )
        if in_flight.phase[slot] == HANDED:
            if not process(plan, costs, in_flight, slot, now, issued, on_wire):
                size = remove(in_flight, size, slot)
            elif (
                slowing
                and costs.felt_early
                and wire_fills(in_flight, now)
                and change_pace(compute, in_flight, now, factor, slow)
            ):
                recompute(plan, costs, compute, in_flight, size, begin, factor, arrived)
            size = issue(plan, costs, compute, in_flight, size, begin, stop, now, factor, arrived)
            continue
        if in_flight.phase[slot] != ON_WIRE:
            if in_flight.phase[slot] == STARTING:
                begin_transfer(plan, costs, in_flight, size, slot, now, on_wire)
                share_links(costs, in_flight, size, now)
            else:
                outlast_startup(plan, costs, in_flight, slot, now, on_wire)
            if in_flight.phase[slot] != ON_WIRE:
                continue
            if (
                slowing
                and not costs.felt_early
                and wire_fills(in_flight, now)
                and change_pace(compute, in_flight, now, factor, slow)
            ):
                recompute(plan, costs, compute, in_flight, size, begin, factor, arrived)
            continue
        occupy(costs, in_flight, slot, -1.0)
        count += complete(
            plan, costs, compute, in_flight, message, channel, stop, now, factor, arrived
        )
        queue = plan.queue[message]
        follower = in_flight.head[queue]
        if follower >= 0:
            in_flight.head[queue] = in_flight.follower[follower]
            in_flight.message[slot] = follower
            in_flight.phase[slot] = STARTING
            in_flight.time[slot] = max(now, on_wire[follower])
            if slowing and costs.felt_early:
                wire_fills(in_flight, now)
        else:
            in_flight.busy[queue] = False
            if not costs.streamed[message_class]:
                in_flight.collectives[channel] -= 1
            size = remove(in_flight, size, slot)
            if in_flight.collectives[channel] > 0:
                share_connections(costs, in_flight, size, channel)
        share_links(costs, in_flight, size, now)
        if (
            slowing
            and wire_empties(in_flight, now)
            and change_pace(compute, in_flight, now, factor, 1.0)
        ):
            recompute(plan, costs, compute, in_flight, size, begin, factor, arrived)
        size = issue(plan, costs, compute, in_flight, size, begin, stop, now, factor, arrived)
    return count == stop


@cached_kernel(allocates=False)
def play(
    plan: MessageArrays,
    costs: CostArrays,
    compute: ComputeArrays,
    in_flight: InFlight,
    chosen: I64,
    factors: F64,
    issued: F64,
    on_wire: F64,
    arrived: F64,
    periods: F64,
) -> None:
    """Fill periods f64[n]: seconds an iteration of each strategy of `chosen`, infinite when it
    cannot finish; the others keep theirs.

    factors f64[n]: of the slowest rank. issued, on_wire, arrived f64[M]: what `communicate` fills.
    """
    for index in chosen:
        factor = factors[index]
        periods[index] = np.inf
        if communicate(plan, costs, compute, in_flight, index, factor, issued, on_wire, arrived):
            periods[index] = finish(plan, compute, in_flight, index, factor, arrived)
