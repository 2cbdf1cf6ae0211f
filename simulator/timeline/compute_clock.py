"""The clock of compute: machine code, without the interpreter lock.

Compute runs at 1 / (1 + slowdown) of its rate while at least one message is on the wire. So when
backward has done something is known in advance only as long as the wire stays as it is; it is told
anew each time the first message comes onto it or the last one leaves. Work is measured in seconds
at full rate. `step()` and updates keep their seconds.
"""

# numba infers the types of what it compiles, tuples of arrays among them
# mypy: allow-untyped-defs

from numba import njit

REPLICATED = 1  # codes.Update

SINCE, DONE, SLOW, END = 0, 1, 2, 3
"""Of a pace: from when on it holds, the work of backward done by then, how many times its seconds
work takes, and when backward ends."""

FLYING, INTERVALS, ISSUED = 0, 1, 2
"""Of a tally: messages on the wire, intervals in which some were, messages issued so far."""


@njit(nogil=True, _nrt=False, inline="always")
def start_clock(compute, air, factor):
    air.pace[SINCE] = 0.0
    air.pace[DONE] = 0.0
    air.pace[SLOW] = 1.0
    air.pace[END] = compute.backward * factor
    air.tally[:] = 0


@njit(nogil=True, _nrt=False, inline="always")
def moment_of(air, work):
    """When backward has done `work`, should the wire stay as it is; not after now if it has."""
    return air.pace[SINCE] + (work - air.pace[DONE]) * air.pace[SLOW]


@njit(nogil=True, _nrt=False)
def wire_fills(air, now):
    """A message comes onto the wire; returns whether it is the first one there."""
    air.tally[FLYING] += 1
    if air.tally[FLYING] > 1:
        return False
    interval = air.tally[INTERVALS]
    if interval > 0 and air.wired[interval - 1, 1] == now:
        air.tally[INTERVALS] = interval - 1  # it goes on
    else:
        air.wired[interval, 0] = now
    return True


@njit(nogil=True, _nrt=False)
def wire_empties(air, now):
    """A message leaves the wire; returns whether none is left there."""
    air.tally[FLYING] -= 1
    if air.tally[FLYING] > 0:
        return False
    air.wired[air.tally[INTERVALS], 1] = now
    air.tally[INTERVALS] += 1
    return True


@njit(nogil=True, _nrt=False)
def change_pace(compute, air, now, factor, slow):
    """Work takes `slow` times its seconds from now on; returns whether backward still goes on."""
    if now >= air.pace[END]:
        return False
    air.pace[DONE] += (now - air.pace[SINCE]) / air.pace[SLOW]
    air.pace[SINCE] = now
    air.pace[SLOW] = slow
    air.pace[END] = moment_of(air, compute.backward * factor)
    return True


@njit(nogil=True, cache=True, _nrt=False)
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
    """Of the elements that a message carries."""
    if compute.update == 0.0:
        return 0.0
    elements = 0
    content = plan.content[message]
    for piece in range(plan.content_first[content], plan.content_first[content + 1]):
        elements += plan.piece_stop[piece] - plan.piece_start[piece]
    return elements * compute.update


@njit(nogil=True, _nrt=False)
def finish(plan, compute, air, index, factor, done):
    """From the messages' arrivals to the end of the next forward pass: `step()`, then gates."""
    begin, stop = plan.first[index], plan.first[index + 1]
    step, updates, gated = air.pace[END], 0.0, False
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
    if not gated:  # nothing is on the wire any more
        return now + compute.forward * factor
    if compute.slowdown > 0.0:
        return _slowed_forward(compute, air, now, factor)
    for operation in range(len(compute.forward_start)):
        reached = now + compute.forward_start[operation] * factor
        now += max(0.0, air.gate_time[operation] - reached) + air.gate_update[operation]
    return now + compute.forward * factor


@njit(nogil=True, _nrt=False)
def _slowed_forward(compute, air, now, factor):
    """The end of a forward pass that begins now, while messages with gates are on the wire."""
    intervals, slow = air.tally[INTERVALS], 1.0 + compute.slowdown
    interval, reached = 0, 0.0
    for operation in range(len(compute.forward_start)):
        if air.gate_time[operation] > 0.0 or air.gate_update[operation] > 0.0:
            work = (compute.forward_start[operation] - reached) * factor
            now, interval = advance(air.wired, intervals, interval, now, work, slow)
            now = max(now, air.gate_time[operation]) + air.gate_update[operation]
            reached = compute.forward_start[operation]
    work = (compute.forward - reached) * factor
    return advance(air.wired, intervals, interval, now, work, slow)[0]
