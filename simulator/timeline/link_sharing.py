"""How messages on the wire share links and connections. Machine code, without the interpreter lock;
see `event_loop`."""

# numba infers the types of what it compiles, tuples of arrays among them
# mypy: allow-untyped-defs

from numba import njit

from autosync.simulator.timeline.compute_clock import END

STEPPING, ON_WIRE = 2, 3
"""Phases of messages that hold links: compute does not feel the one, for as long as the startup of
a message in steps would take before its bytes, and does feel the other."""

ROUNDING = 1e-9
"""Of a link that messages come to and leave: by how much more than all of it may seem taken."""


@njit(nogil=True, _nrt=False)
def share_links(costs, in_flight, size, now):
    """Share the links anew: where more is asked for than there is, all connections get the same,
    and a message slows down as its slowest ones do."""
    contended = costs.transfer_slowdown > 0.0 and now < in_flight.pace[END]
    flows, per_flow = in_flight.flows, costs.per_flow
    crowded = list_crowded(in_flight)
    for slot in range(size):
        if in_flight.phase[slot] >= STEPPING:
            message_class = in_flight.message_class[slot]
            slow, wanted = 1.0, 0.0
            if in_flight.weight[slot] > 0.0:
                wanted = in_flight.moving[slot] / in_flight.weight[slot]
            for place in range(crowded):
                resource = in_flight.crowded[place]
                slow = max(slow, wanted * flows[resource] * per_flow[message_class, resource])
            if contended:
                slow = max(slow, slow_beside_compute(costs, in_flight, size, message_class))
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
        if in_flight.used[resource] > 1.0 + ROUNDING:
            in_flight.crowded[count] = resource
            count += 1
    return count


@njit(nogil=True, _nrt=False)
def slow_beside_compute(costs, in_flight, size, message_class):
    """How many times its seconds a message takes at ports of which compute takes its part.

    What is left of a port is shared in proportion to demand, but no message gets less than an
    equal part or than it wants.
    """
    on_wire, slow = 0, 0.0
    for slot in range(size):
        on_wire += in_flight.phase[slot] >= STEPPING
    for resource in range(len(in_flight.used)):
        if costs.ports[resource] and costs.utilization[message_class, resource] > 0.0:
            wanted = on_wire * costs.utilization[message_class, resource]
            slow = max(slow, min(in_flight.used[resource], wanted))
    return slow * (1.0 + costs.transfer_slowdown)


@njit(nogil=True, _nrt=False, inline="always")
def occupy(costs, in_flight, slot, sign):
    message_class = in_flight.message_class[slot]
    moving, weight = sign * in_flight.moving[slot], sign * in_flight.weight[slot]
    for resource in range(len(in_flight.used)):
        in_flight.used[resource] += moving * costs.utilization[message_class, resource]
        in_flight.flows[resource] += weight * costs.flows[message_class, resource]


@njit(nogil=True, _nrt=False)
def share_connections(costs, in_flight, size, channel):
    """Weigh the rings of a channel anew. They share its connections, which send a segment of each
    in turn, and a ring's segments are in proportion to its bytes (gloo/allreduce.cc; its limit of
    1 MB a segment is not played)."""
    turns = 0.0
    for slot in range(size):
        if in_flight.phase[slot] >= STEPPING and in_flight.channel[slot] == channel:
            turns += in_flight.turn[slot]
    for slot in range(size):
        if (
            in_flight.phase[slot] >= STEPPING
            and in_flight.channel[slot] == channel
            and in_flight.turn[slot] > 0.0
        ):
            share = in_flight.turn[slot] / turns
            weigh(costs, in_flight, slot, share * least_weight(in_flight, slot))


@njit(nogil=True, _nrt=False, inline="always")
def least_weight(in_flight, slot):
    """The smallest weight of a ring in the sharing of a link: beside one other flow the ring then
    gets the rate that it asks for, and next to nothing while it mostly waits."""
    return min(1.0, 2.0 * in_flight.moving[slot])


@njit(nogil=True, _nrt=False, inline="always")
def weigh(costs, in_flight, slot, weight):
    """Let a message on the wire have another part of its connections."""
    change = weight - in_flight.weight[slot]
    if change != 0.0:
        in_flight.weight[slot] = weight
        for resource in range(len(in_flight.flows)):
            in_flight.flows[resource] += (
                change * costs.flows[in_flight.message_class[slot], resource]
            )
