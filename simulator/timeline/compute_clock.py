"""The clock of compute: machine code, without the interpreter lock.

Compute runs at 1 / (1 + slowdown) of its rate while at least one message is on the wire. When
backward reaches an operation is therefore known in advance only for as long as that does not
change, and is found again each time the first message comes onto the wire or the last one leaves
it. Work is measured in seconds at full rate. `step()` and updates keep their seconds.
"""

# numba infers the types of what it compiles, tuples of arrays among them
# mypy: allow-untyped-defs

from numba import njit

from autosync.codes import Op, Update

REPLICATED = int(Update.REPLICATED)
FACTORS = int(Op.FACTOR_ALL_GATHER)

SINCE, DONE, SLOW, END = 0, 1, 2, 3
"""Places in the array `pace`: since when the present pace holds, the work of backward done by then,
how many times its seconds work takes at this pace, and when backward ends."""

MESSAGES_ON_WIRE, INTERVALS, ISSUED = 0, 1, 2
"""Places in the array `tally`: messages on the wire, intervals in which some were, messages issued
so far."""
REDUCTIONS_LEFT, REDUCTIONS_IN_FLIGHT, GATHERS_IN_FLIGHT = 3, 4, 5
"""And where all-gathers wait for an idle wire: reductions that have not completed, those among them
that are in flight, and all-gathers in flight."""
TALLIES = 6


@njit(nogil=True, _nrt=False, inline="always")
def start_clock(compute, in_flight, factor):
    in_flight.pace[SINCE] = 0.0
    in_flight.pace[DONE] = 0.0
    in_flight.pace[SLOW] = 1.0
    in_flight.pace[END] = compute.backward * factor
    in_flight.tally[:] = 0


@njit(nogil=True, _nrt=False, inline="always")
def moment_of(in_flight, work):
    """When backward has done `work`, should the wire stay as it is; not after now if it has."""
    return in_flight.pace[SINCE] + (work - in_flight.pace[DONE]) * in_flight.pace[SLOW]


@njit(nogil=True, _nrt=False)
def wire_fills(in_flight, now):
    """A message comes onto the wire; returns whether it is the first one there."""
    in_flight.tally[MESSAGES_ON_WIRE] += 1
    if in_flight.tally[MESSAGES_ON_WIRE] > 1:
        return False
    interval = in_flight.tally[INTERVALS]
    if interval > 0 and in_flight.wired[interval - 1, 1] == now:
        in_flight.tally[INTERVALS] = interval - 1  # it goes on
    else:
        in_flight.wired[interval, 0] = now
    return True


@njit(nogil=True, _nrt=False)
def wire_empties(in_flight, now):
    """A message leaves the wire; returns whether none is left there."""
    in_flight.tally[MESSAGES_ON_WIRE] -= 1
    if in_flight.tally[MESSAGES_ON_WIRE] > 0:
        return False
    in_flight.wired[in_flight.tally[INTERVALS], 1] = now
    in_flight.tally[INTERVALS] += 1
    return True


@njit(nogil=True, _nrt=False)
def change_pace(compute, in_flight, now, factor, slow):
    """Work takes `slow` times its seconds from now on; returns whether backward still goes on."""
    if now >= in_flight.pace[END]:
        return False
    in_flight.pace[DONE] += (now - in_flight.pace[SINCE]) / in_flight.pace[SLOW]
    in_flight.pace[SINCE] = now
    in_flight.pace[SLOW] = slow
    in_flight.pace[END] = moment_of(in_flight, compute.backward * factor)
    return True


@njit(nogil=True, _nrt=False)
def advance(wired, intervals, interval, now, work, slow):
    """When `work` that begins now is done, and the first interval that is not over by then.

    wired f64[>= intervals, 2]: when messages are on the wire, in order. interval: none before it
    reaches beyond now.
    """
    while interval < intervals:
        begin, end = wired[interval, 0], wired[interval, 1]
        if end > now:
            if now + work <= begin:
                break
            if now < begin:
                work -= begin - now
                now = begin
            if now + work * slow <= end:
                return now + work * slow, interval
            work -= (end - now) / slow
            now = end
        interval += 1
    return now + work, interval


@njit(nogil=True, _nrt=False, inline="always")
def update_seconds(plan, compute, message):
    """Of what a message carries."""
    return compute.update[plan.bucket[message]]


@njit(nogil=True, _nrt=False, inline="always")
def rebuild_seconds(plan, compute, message):
    """Of the matrix products that make gradients of the factors of all ranks."""
    if plan.operation[message] != FACTORS:
        return 0.0
    return compute.rebuild[plan.bucket[message]]


@njit(nogil=True, _nrt=False, inline="always")
def worked_on(plan, compute, in_flight, message, channel, now, factor):
    """When ranks are done with what arrived; in order, behind what arrived before."""
    work = rebuild_seconds(plan, compute, message) * factor
    in_flight.landing[channel] = max(now, in_flight.landing[channel]) + work
    return in_flight.landing[channel]


@njit(nogil=True, _nrt=False)
def finish(plan, compute, in_flight, index, factor, arrived):
    """From the messages' arrivals to the end of the next forward pass: `step()`, then gates."""
    begin, stop = plan.first[index], plan.first[index + 1]
    step, updates, gated = in_flight.pace[END], 0.0, False
    for message in range(begin, stop):
        cost = 0.0
        if plan.update[message] == REPLICATED:
            cost = update_seconds(plan, compute, message)
        gate = plan.gate[message]
        if gate < 0:
            step = max(step, arrived[message])
            updates += cost
            continue
        if not gated:
            in_flight.gate_time[:] = 0.0
            in_flight.gate_update[:] = 0.0
            gated = True
        in_flight.gate_time[gate] = max(in_flight.gate_time[gate], arrived[message])
        in_flight.gate_update[gate] += cost
    now = step + updates
    if not gated:  # nothing is on the wire any more
        return now + compute.forward * factor
    if compute.slowdown > 0.0:
        return _slowed_forward(compute, in_flight, now, factor)
    for operation in range(len(compute.forward_start)):
        reached = now + compute.forward_start[operation] * factor
        now += max(0.0, in_flight.gate_time[operation] - reached) + in_flight.gate_update[operation]
    return now + compute.forward * factor


@njit(nogil=True, _nrt=False)
def _slowed_forward(compute, in_flight, now, factor):
    """The end of a forward pass that begins now, while messages with gates are on the wire."""
    intervals, slow = in_flight.tally[INTERVALS], 1.0 + compute.slowdown
    interval, reached = 0, 0.0
    for operation in range(len(compute.forward_start)):
        if in_flight.gate_time[operation] > 0.0 or in_flight.gate_update[operation] > 0.0:
            work = (compute.forward_start[operation] - reached) * factor
            now, interval = advance(in_flight.wired, intervals, interval, now, work, slow)
            now = max(now, in_flight.gate_time[operation]) + in_flight.gate_update[operation]
            reached = compute.forward_start[operation]
    work = (compute.forward - reached) * factor
    return advance(in_flight.wired, intervals, interval, now, work, slow)[0]
