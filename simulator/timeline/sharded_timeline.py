"""Plays an iteration under torch's `fully_shard`, whose messages and compute wait for each other in
the forward and the backward pass alike: the event loop lets compute wait in the forward pass only.

As torch 2.13 does it (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py). On an accelerator
a unit's values are asked for so many units ahead as `FullyShard` says, in the forward pass one
more, since the host runs ahead of its device; gathers and reduce-scatters share one communicator,
in the order in which they are asked for; a unit's reduce-scatter waits for that of the unit before.
Gathers over smaller groups have communicators of their own, and wait for gathers alone.
In host memory each call returns when it is done, so nothing runs beside compute.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.codes import Op
from autosync.plan import PlanTable
from autosync.simulator.cost.network_arrays import Network
from autosync.simulator.numba_cache import Kernel
from autosync.simulator.timeline.compute_clock import advance
from autosync.simulator.timeline.timeline_arrays import ComputeArrays, CostArrays
from autosync.torch_engine import FullyShard

F64 = NDArray[np.float64]
QUEUES = ("shards", "replicas", "smaller")
"""Communicators: of the shard groups, between their replicas, and of the smaller groups to which
units reshard. Each runs one message at a time."""
Span = tuple[str, float, float]
"""Phase (forward, backward, update or wait), start and stop."""

_advance = Kernel(advance, allocates=False)


@dataclass(slots=True)
class ShardedIteration:
    """Seconds from the start of backward; messages are numbered within their strategy.

    issued, on_wire, arrived: `(messages,)`. spans: of the slowest rank's compute. forward_start:
    when its `step()` has ended.
    """

    issued: F64
    on_wire: F64
    arrived: F64
    spans: list[Span] = field(default_factory=list)
    forward_start: float = 0.0

    @property
    def step_seconds(self) -> float:
        return self.spans[-1][2]


class ShardedPlayer:
    """Strategy `index` of compiled plans: the slowest rank's clock, and the communicators' queues.

    costs: of the network's classes. factor: of the slowest rank.
    """

    def __init__(
        self,
        plans: PlanTable,
        index: int,
        network: Network,
        costs: CostArrays,
        compute: ComputeArrays,
        factor: float,
    ) -> None:
        first, stop = int(plans.first[index]), int(plans.first[index + 1])
        self.rows = {
            name: getattr(plans, name)[first:stop].astype(np.int64)
            for name in ("operation", "ranks", "wire_bytes", "ready", "after", "gate", "before")
        }
        self.whole_update_seconds = float(compute.update[np.unique(plans.bucket[first:stop])].sum())
        self.costs, self.compute, self.factor = costs, compute, factor
        self.blocking = costs.in_order  # in host memory
        self.message_class = _classes(self.rows, network, self.blocking)
        count = stop - first
        of_reduces = self.rows["operation"] == Op.REDUCE_SCATTER
        self.shard_groups = self.rows["ranks"][of_reduces].max(initial=0)
        self.played = ShardedIteration(*np.zeros((3, count)))
        self.now = 0.0
        self.free = dict.fromkeys(QUEUES, 0.0)  # when a queue is free
        self.gathered = 0.0  # when the last gather has arrived
        self.wired: list[tuple[float, float]] = []
        self.flown: dict[str, list[tuple[float, float, int]]] = {name: [] for name in QUEUES}
        self.in_backward = True

    def play(self, engine: FullyShard, before_last: bool) -> ShardedIteration:
        """One batch. before_last: of an update that has several, without the update: it reduces
        and gathers what is not kept between batches."""
        kept = engine.kept_between_batches if before_last else ""
        self._backward(reduces=not kept)
        if not before_last:
            self._spend("update", self.now + self.whole_update_seconds / engine.shard_ranks)
            self.played.forward_start = self.now
        self._forward(engine.forward_prefetch, gathers=kept != "values")
        return self.played

    def _backward(self, reduces: bool) -> None:
        """Gathers, compute and, where the batch has them, reductions, boundary by boundary."""
        before, ready, after = (self.rows[name] for name in ("before", "ready", "after"))
        messages = range(len(before))
        gathers = [m for m in messages if before[m] >= 0]
        reducing = [m for m in messages if reduces and before[m] < 0 and ready[m] >= 0]
        crossing = {int(after[m]): m for m in messages if reduces and self._crosses(m)}
        # At one moment the unit before reduces, the next one's values are waited for, and that one
        # asks for others. The first gathers are asked for before anything is waited for.
        steps = [(self._ready_seconds(int(ready[m])), 0, m) for m in reducing]
        steps += [(self._ready_seconds(int(before[m]) - 1), 1, m) for m in gathers]
        steps += [(self._ready_seconds(int(ready[m])), 2, m) for m in gathers if ready[m] >= 0]
        reached, last = 0.0, -1
        for message in (m for m in gathers if ready[m] < 0):
            self._gather(message)
        for moment, step, message in sorted(steps):
            self._compute("backward", moment - reached)
            reached = moment
            if step == 1:
                self._wait(message)
                continue
            if step == 2:
                self._gather(message)
                continue
            if last >= 0:
                self._wait(last)
            self._send(message)
            last = message
            if message in crossing:
                self._send(crossing[message], self.played.arrived[message], "replicas")
        self._compute("backward", self.compute.backward - reached)
        for message in (*reducing, *crossing.values()):
            self._wait(message)
        self.in_backward = False

    def _forward(self, prefetch: int, gathers: bool) -> None:
        """A unit computes when its values are there; they are asked for some units ahead: each
        gather waits for the copies of the unit `prefetch + 1` before it. gathers: False where the
        batch before has left the values there."""
        gate = self.rows["gate"]
        gathering = [m for m in range(len(gate)) if gathers and gate[m] >= 0]
        reached, asked = 0.0, 0
        for place, message in enumerate(gathering):
            start = float(self.compute.forward_start[gate[message]])
            self._compute("forward", start - reached)
            reached = start
            ahead = 0 if self.blocking else prefetch
            while asked < len(gathering) and asked <= place + ahead:
                self._gather(gathering[asked])
                asked += 1
            self._wait(message)
            if not self.blocking and asked < len(gathering) and asked <= place + prefetch + 1:
                self._gather(gathering[asked])
                asked += 1
        self._compute("forward", self.compute.forward - reached)

    def _ready_seconds(self, position: int) -> float:
        """When a gradient exists in the profile's backward pass; 0 for the one before the first."""
        return float(self.compute.ready[position]) if position >= 0 else 0.0

    def _crosses(self, message: int) -> bool:
        return bool(self.rows["operation"][message] == Op.ALL_REDUCE)

    def _compute(self, phase: str, seconds: float) -> None:
        """Compute that takes so many seconds in the profile, slowed beside messages."""
        slow = 1.0 + self.compute.slowdown
        wired = np.array(self.wired or [(0.0, 0.0)])
        until = _advance(wired, len(wired), 0, self.now, max(0.0, seconds) * self.factor, slow)[0]
        self._spend(phase, float(until))

    def _wait(self, message: int) -> None:
        self._spend("wait", float(self.played.arrived[message]))

    def _spend(self, phase: str, until: float) -> None:
        if until <= self.now:
            return
        spans = self.played.spans
        if spans and spans[-1][0] == phase:
            spans[-1] = (phase, spans[-1][1], until)
        else:
            spans.append((phase, self.now, until))
        self.now = until

    def _gather(self, message: int) -> None:
        """Gathers are on one stream, whichever communicator has them."""
        smaller = self.rows["ranks"][message] != self.shard_groups
        queue = "smaller" if smaller else "shards"
        self.free[queue] = max(self.free[queue], self.gathered)
        self._send(message, queue=queue)
        self.gathered = float(self.played.arrived[message])

    def _send(self, message: int, earliest: float = 0.0, queue: str = "shards") -> None:
        """Ask for a message now; it starts when its communicator is free. In host memory the call
        returns when it is done."""
        issued = max(self.now, earliest)
        start = issued if self.blocking else max(issued, self.free[queue])
        message_class = int(self.message_class[message])
        size = float(self.rows["wire_bytes"][message])
        costs = self.costs
        wired = start + costs.host[message_class] + costs.host_byte[message_class] * size
        wired += costs.startup[message_class] + costs.copy[message_class] * size
        on_links = costs.link[message_class] + costs.per_byte[
            message_class
        ] * size * self._beside_compute(message_class)
        arrived = self._beside_others(float(wired), float(on_links), message_class, queue)
        self.played.issued[message], self.played.on_wire[message] = issued, wired
        self.played.arrived[message] = arrived
        if self.blocking:
            self._spend("wait", arrived)
            return
        self.free[queue] = arrived
        self.flown[queue].append((float(wired), arrived, message_class))
        felt = start if costs.felt_early else float(wired)
        self.wired = _with_interval(self.wired, (felt, arrived))

    def _beside_others(self, start: float, seconds: float, message_class: int, queue: str) -> float:
        """When a message has arrived that comes onto its links now and takes so many seconds alone:
        messages of other communicators that were asked for before leave it what they do not
        take of a link."""
        used = self.costs.utilization
        mine = used[message_class]
        others = [
            flown
            for name in QUEUES
            if name != queue
            for flown in self.flown[name]
            if flown[1] > start
        ]
        while others:
            changes = [time for begin, end, _ in others for time in (begin, end) if time > start]
            until = min(changes)
            beside = sum(used[other] for begin, end, other in others if begin <= start < end)
            left = np.clip(1.0 - beside, 0.0, 1.0)
            share = np.divide(left, mine, out=np.ones_like(mine), where=mine > left)
            rate = float(share.min(initial=1.0))
            if seconds <= rate * (until - start):
                return start + (seconds / rate if rate else 0.0)
            seconds -= rate * (until - start)
            start = until
            others = [flown for flown in others if flown[1] > start]
        return start + seconds

    def _beside_compute(self, message_class: int) -> float:
        """How many times its seconds a message takes at ports that backward uses, too."""
        if not self.in_backward or not self.costs.transfer_slowdown:
            return 1.0
        at_ports = self.costs.utilization[message_class][self.costs.ports].max(initial=0.0)
        return float(max(1.0, at_ports * (1.0 + self.costs.transfer_slowdown)))


def sent_in_host_memory(operation: NDArray[Any]) -> NDArray[Any]:
    """What moves messages of `fully_shard` in host memory: a reduce-scatter is an all-reduce of
    which each rank keeps its part."""
    return np.where(operation == Op.REDUCE_SCATTER, int(Op.ALL_REDUCE), operation)


def _classes(
    rows: dict[str, NDArray[np.int64]], network: Network, blocking: bool
) -> NDArray[np.int32]:
    """Of each message."""
    operation = rows["operation"]
    if blocking:
        operation = sent_in_host_memory(operation)
    return network.class_of(operation, rows["ranks"], -1, rows["wire_bytes"])


def _with_interval(
    wired: list[tuple[float, float]], added: tuple[float, float]
) -> list[tuple[float, float]]:
    """Intervals in order and apart, with one more."""
    found: list[tuple[float, float]] = []
    for start, stop in sorted([*wired, added]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found
