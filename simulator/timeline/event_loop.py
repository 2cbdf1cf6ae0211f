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
from autosync.simulator.timeline.idle_rule import GATHER, count_first_halves, settle
from autosync.simulator.timeline.link_sharing import (
    ON_WIRE,
    occupy,
    share_connections,
    share_links,
)
from autosync.simulator.timeline.message_issue import CHANNELS, issue, next_of, recompute
from autosync.simulator.timeline.message_transfer import (
    HANDED,
    STARTING,
    begin_transfer,
    outlast_startup,
    process,
    remove,
)

MISSING, WHOLE = -1.0, -2.0
"""In place of when a message arrived: it is not there, or it is and waits for one before it."""

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


class MessageArrays(NamedTuple):
    """The columns of a PlanTable that matter here; see there."""

    first: I64
    operation: NDArray[np.uint8]
    channel: NDArray[np.uint8]
    root: NDArray[np.int16]
    ranks: NDArray[np.uint16]
    carries_values: NDArray[np.bool_]
    wire_bytes: I64
    ready: NDArray[np.int32]
    after: I64
    gate: NDArray[np.int32]
    update: NDArray[np.uint8]
    bucket: I64


class CostArrays(NamedTuple):
    """Per kind; see `cost.network.Network`. per_flow f64[K, U]: utilization over flows.
    link f64[K]: seconds that a message holds its links besides its bytes.
    ports bool[U]: resources that are devices' ports, through which transfers take the share
    transfer_slowdown longer during backward.
    in_flight i64[K]: collectives at once in the kind's channel; streamed ones are not counted.
    stepwise bool[K]: startup and copies lie between a message's bytes, not before them.
    host, host_byte f64[K]: how long a message keeps the hosts' processors from every other one.
    ahead: seconds that an engine spends on each message of a channel on a host that runs ahead of
    its device, from the start of backward on, while gradients are still computed.
    in_order: whether a message lands only when all before it on its channel have."""

    kind: NDArray[np.int16]
    startup: F64
    copy: F64
    link: F64
    per_byte: F64
    utilization: F64
    flows: F64
    per_flow: F64
    ports: NDArray[np.bool_]
    transfer_slowdown: float
    in_flight: I64
    streamed: NDArray[np.bool_]
    stepwise: NDArray[np.bool_]
    host: F64
    host_byte: F64
    ahead: float
    in_order: bool


class ComputeArrays(NamedTuple):
    """At factor 1. update f64[C]: seconds in which an optimizer updates a whole bucket. rebuild
    f64[C]: of the products that make a bucket's gradients of the factors of all ranks. slowdown:
    share by which compute takes longer while a message is on the wire."""

    forward_start: F64
    forward: float
    backward: float
    ready: F64
    update: F64
    rebuild: F64
    world: int
    slowdown: float


class InFlight(NamedTuple):
    """Messages in flight, one a slot of compact arrays; and the state of resources (U), channels,
    owners and kinds (K).

    Per slot: time: when its phase ends at its present share (slow) of its links. moving: the share
    of its seconds alone in which its bytes move. turn: a ring's bytes, 0 for other messages.
    weight: its part of the connections of its channel. earliest: when it could be issued if it
    waited for no compute. issue_number: how many were issued before it.
    Per channel: cursor: the next message. oldest: the first that has not landed. collectives: how
    many are in flight. handed: whether a message waits for its processor. ahead: until when a host
    ahead of its device prepares messages. landing: until when what arrived is worked on. left
    f64[M]: when a message's last byte was there.
    used, flows f64[U]: demand for each resource, and flows over it. crowded i64[U]: the first of
    them are resources of which too much is asked. processor f64[1]: until when the hosts are busy
    with messages. clock: until when an owner updates. busy bool[K]: whether a
    streamed message of the kind is on its way. head, tail i64[K]: the first and last one that waits
    for it, -1 without; follower i64[M]: the one behind.
    gate_time, gate_update: per forward operation, when what it waits for is there, and the seconds
    of updates then. pace f64[4], tally i64[6]: see `compute_clock`. wired f64[W, 2]:
    when messages were on the wire, in order and apart; filled only where that slows compute.
    """

    message: I64
    kind: I64
    channel: I64
    phase: I64
    time: F64
    slow: F64
    moving: F64
    turn: F64
    weight: F64
    earliest: F64
    issue_number: I64
    used: F64
    flows: F64
    crowded: I64
    cursor: I64
    oldest: I64
    collectives: I64
    handed: NDArray[np.bool_]
    ahead: F64
    landing: F64
    left: F64
    processor: F64
    clock: F64
    busy: NDArray[np.bool_]
    head: I64
    tail: I64
    follower: I64
    gate_time: F64
    gate_update: F64
    pace: F64
    tally: I64
    wired: F64


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
def land(plan, costs, compute, in_flight, message, channel, stop, now, factor, arrived):
    """A message is whole on every rank; returns how many have landed by that.

    In order, a message lands when all before it on its channel have. One of factors has arrived
    when its gradients are rebuilt, which a channel does for one message at a time.
    """
    in_flight.left[message] = now
    if not costs.in_order:
        arrived[message] = worked_on(plan, compute, in_flight, message, channel, now, factor)
        settle(plan, in_flight, message)
        return 1
    arrived[message] = WHOLE
    oldest, landed = in_flight.oldest[channel], 0
    while oldest < stop and arrived[oldest] == WHOLE:
        arrived[oldest] = worked_on(plan, compute, in_flight, oldest, channel, now, factor)
        settle(plan, in_flight, oldest)
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
        count_first_halves(plan, in_flight, begin, stop)
    size = issue(plan, costs, compute, in_flight, 0, begin, stop, 0.0, factor, arrived)
    count = begin
    while size > 0:
        slot = earliest_slot(in_flight, size)
        now = in_flight.time[slot]
        if computes and now >= in_flight.pace[END]:
            computes = False
            share_links(costs, in_flight, size, in_flight.pace[END])
            continue
        message, kind, channel = (
            in_flight.message[slot],
            in_flight.kind[slot],
            in_flight.channel[slot],
        )
        if in_flight.phase[slot] == HANDED:
            if not process(plan, costs, in_flight, slot, now, issued, on_wire):
                size = remove(in_flight, size, slot)
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
                and wire_fills(in_flight, now)
                and change_pace(compute, in_flight, now, factor, slow)
            ):
                recompute(plan, compute, in_flight, size, begin, factor)
            continue
        occupy(costs, in_flight, slot, -1.0)
        count += land(plan, costs, compute, in_flight, message, channel, stop, now, factor, arrived)
        follower = in_flight.head[kind]
        if follower >= 0:
            in_flight.head[kind] = in_flight.follower[follower]
            in_flight.message[slot] = follower
            in_flight.phase[slot] = STARTING
            in_flight.time[slot] = max(now, on_wire[follower])
        else:
            in_flight.busy[kind] = False
            if not costs.streamed[kind]:
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
            recompute(plan, compute, in_flight, size, begin, factor)
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
