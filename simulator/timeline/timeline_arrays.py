"""What the timeline's kernels read and write, as plain tuples of arrays; see `event_loop`."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


class MessageArrays(NamedTuple):
    """The columns of a PlanTable that matter here; see there. message_class: see `Network`. queue
    i64[M]: of messages that follow each other where they are streamed: of a class and a root.
    channel: not the plan's where the backend has one order (`message_issue.ORDERED`)."""

    first: I64
    operation: NDArray[np.uint8]
    channel: NDArray[np.uint8]
    root: NDArray[np.int16]
    message_class: NDArray[np.int32]
    queue: I64
    carries_values: NDArray[np.bool_]
    wire_bytes: I64
    ready: NDArray[np.int32]
    after: I64
    gate: NDArray[np.int32]
    update: NDArray[np.uint8]
    bucket: I64


class CostArrays(NamedTuple):
    """Per class of messages; see `cost.network_arrays.Network`.

    per_flow f64[K, U]: utilization over flows.
    link f64[K]: seconds that a message holds its links besides its bytes.
    ports bool[U]: resources that are devices' ports, through which transfers take the share
    transfer_slowdown longer during backward.
    in_flight i64[K]: collectives at once in the channel of the class; streamed ones are not
    counted.
    stepwise bool[K]: startup and copies lie between a message's bytes, not before them.
    host, host_byte f64[K]: how long a message keeps the hosts' processors from every other one.
    ahead: seconds that an engine spends on each message of a channel on a host that runs ahead of
    its device, from the start of backward on, while gradients are still computed.
    in_order: whether a message lands only when all before it on its channel have.
    one_order: whether channel `message_issue.ORDERED_VALUES` begins when `ORDERED` has ended.
    felt_early: whether compute feels a message from its startup on."""

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
    one_order: bool
    felt_early: bool


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
    owners and queues (Q).

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
    with messages. clock: until when an owner updates. busy bool[Q]: whether a streamed message of
    the queue is on its way. head, tail i64[Q]: the first and last one that waits for it, -1
    without; follower i64[M]: the one behind.
    gate_time, gate_update: per forward operation, when what it waits for is there, and the seconds
    of updates then. pace f64[4], tally i64[6]: see `compute_clock`. wired f64[W, 2]:
    when messages were on the wire, in order and apart; filled only where that slows compute.
    """

    message: I64
    message_class: I64
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
