"""Parameter servers with clocks, and their clients (stale synchronous parallel: Ho et al., "More
effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013).

A server adds the updates of all ranks as they arrive. It answers each update with its values, as
soon as these are new enough for the next step of the rank that sent it, not only for this step. So
an answer travels while the rank computes. Values as old as this step allows would be too old for
the next one, which would then wait for the answer to its own update.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import reduce
from queue import SimpleQueue
from threading import Condition, Lock, Thread
from typing import Any, Protocol

import torch
from torch import Tensor

from autosync.plan import Plan
from autosync.runtime.execution.monitor import LOOK_SECONDS
from autosync.runtime.layout.segments import Segment, bucket_segments
from autosync.runtime.transport.agreement import Refusals
from autosync.runtime.transport.base import SynchronizationFailed, lost_peer
from autosync.runtime.transport.gloo import sum_type

log = logging.getLogger("autosync")

STAMP_BYTES = 8

LEFT = -1
"""Stamp of what a rank sends in place of an update when it has no more of them."""

IDLE = timedelta(days=365)
"""How long a server waits for an update: as long as a script computes, evaluates or loads."""


class StampedBuffer:
    """Flat values and an integer, in one piece of memory that travels as bytes."""

    def __init__(self, size: int, dtype: torch.dtype):
        payload = -(-size * dtype.itemsize // STAMP_BYTES) * STAMP_BYTES
        self.raw = torch.zeros(payload + STAMP_BYTES, dtype=torch.uint8, device="cpu")
        self.values: Tensor = self.raw[: size * dtype.itemsize].view(dtype)
        self._stamp = self.raw[payload:].view(torch.int64)

    @property
    def stamp(self) -> int:
        return int(self._stamp)

    @stamp.setter
    def stamp(self, value: int) -> None:
        self._stamp.fill_(value)


class PeerMessages:
    """Sends and receives between pairs of ranks, in the order of each tag.

    group: of gloo, for this alone. It counts its operations without a lock of its own, and several
    threads ask for them here.
    """

    def __init__(self, group: Any):
        self._group = group
        self._lock = Lock()

    def send(self, buffer: StampedBuffer, rank: int, tag: int) -> Any:
        """What is under way, which ends once the peer has asked for it."""
        with self._lock:
            return self._group.send([buffer.raw], rank, tag)

    def receive(self, buffer: StampedBuffer, rank: int, tag: int) -> Any:
        with self._lock:
            return self._group.recv([buffer.raw], rank, tag)


@dataclass(frozen=True, slots=True)
class ClockedBucket:
    """Values that one rank owns, flat. index: in the plan. owner: a rank. size: elements."""

    index: int
    owner: int
    dtype: torch.dtype
    size: int
    segments: tuple[Segment, ...]

    @property
    def update_tag(self) -> int:
        return 2 * self.index

    @property
    def answer_tag(self) -> int:
        return 2 * self.index + 1

    def gather(self, parameters: Sequence[Tensor], flat: Tensor) -> None:
        """Copy the parameters' values to `flat`, `(size,)`."""
        for segment in self.segments:
            value = parameters[segment.variable].detach()[segment.region]
            flat[segment.start : segment.stop].view(segment.shape).copy_(value)

    def scatter(self, flat: Tensor, parameters: Sequence[Tensor]) -> None:
        """The reverse."""
        for segment in self.segments:
            value = flat[segment.start : segment.stop].view(segment.shape)
            parameters[segment.variable].detach()[segment.region].copy_(value)


def clocked_buckets(plan: Plan, parameters: Sequence[Tensor]) -> list[ClockedBucket]:
    """In the order in which the plan sends them. parameters: of the plan's variables."""
    shapes = [tuple(parameter.shape) for parameter in parameters]
    found = []
    for message in plan.messages:
        if not message.operation.to_owner:
            continue
        segments = bucket_segments(plan, message.bucket, shapes)
        dtypes = [parameters[segment.variable].dtype for segment in segments]
        dtype = reduce(torch.promote_types, dtypes)
        size = segments[-1].stop
        found.append(ClockedBucket(message.bucket, message.root, dtype, size, segments))
    return found


class OwnClient(Protocol):
    """The client of the same rank."""

    def deliver(self, bucket: int, stamp: int, values: Tensor) -> None:
        """Takes an answer, and copies its values."""
        ...

    def fail(self, error: Exception) -> object:
        """The server has failed."""
        ...


def refusal(rank: int) -> int:
    """Stamp of an answer without values: `rank` has left, and updates of it are missing."""
    return -1 - rank


def refused_for(stamp: int) -> int:
    """The rank of a `refusal`; negative of another stamp."""
    return -1 - stamp


@dataclass(frozen=True, slots=True)
class Asked:
    """An update's rank waits for an answer. oldest: the least clock that its step may have read;
    wanted: that its next one may, where every rank goes on."""

    rank: int
    oldest: int
    wanted: int


class OwnedValues:
    """A bucket on its owner. values: the first ones and all updates so far, in the type in which
    sums are formed. clocks: how many updates of each rank they hold. waiting: updates without an
    answer, in their order."""

    def __init__(self, bucket: ClockedBucket, values: Tensor, world: int):
        self.bucket = bucket
        self.lock = Lock()
        self.values = values.to(sum_type(values), copy=True)
        self.clocks = [0] * world
        self.waiting: list[Asked] = []


class ShardServer:
    """owned: the buckets that this rank owns, with their values. rank, world: of this rank.
    messages: to and from the other ranks. client: of this one."""

    def __init__(
        self,
        owned: Sequence[OwnedValues],
        rank: int,
        world: int,
        staleness: int,
        messages: PeerMessages,
        client: OwnClient,
    ):
        self.owned = {one.bucket.index: one for one in owned}
        self._rank = rank
        self._staleness = staleness
        self._messages = messages
        self._client = client
        self._gone: frozenset[int] = frozenset()
        self._leaving = Lock()
        peers = [peer for peer in range(world) if peer != rank] if owned else []
        self._answers = {(peer, i): _buffer(self.owned[i]) for peer in peers for i in self.owned}
        self._sent: dict[tuple[int, int], Any] = {}
        self._threads = [
            Thread(target=self._serve, args=(peer,), name=f"autosync-serve-{peer}", daemon=True)
            for peer in peers
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self, timeout: timedelta) -> None:
        """Until every other rank has left, or for so long each."""
        for thread in self._threads:
            thread.join(timeout.total_seconds())

    def leave(self, rank: int) -> None:
        """It has no more updates, and takes no more steps: it gets the values as they are. Whoever
        needs updates of it that do not come gets an error."""
        for one in self.owned.values():
            with one.lock:
                for asked in [asked for asked in one.waiting if asked.rank == rank]:
                    one.waiting.remove(asked)
                    self._reply(one, rank, min(one.clocks))
        with self._leaving:
            self._gone |= {rank}
        for one in self.owned.values():
            with one.lock:
                self._answer(one)

    def add(self, bucket: int, rank: int, update: Tensor) -> None:
        """A rank's next update; answers whoever may have the values then."""
        one = self.owned[bucket]
        with one.lock:
            one.values.add_(update)
            one.clocks[rank] += 1
            own = one.clocks[rank]
            asked = Asked(rank, own - self._staleness, own - max(0, self._staleness - 1))
            one.waiting.append(asked)
            self._answer(one)

    def _answer(self, one: OwnedValues) -> None:
        """Called with the lock of the bucket."""
        clock = min(one.clocks)
        for asked in list(one.waiting):
            missing = [gone for gone in sorted(self._gone) if one.clocks[gone] < asked.oldest]
            ends = any(one.clocks[gone] < asked.wanted for gone in self._gone)
            if missing or clock >= (asked.oldest if ends else asked.wanted):
                one.waiting.remove(asked)
                self._reply(one, asked.rank, refusal(missing[0]) if missing else clock)

    def _reply(self, one: OwnedValues, rank: int, stamp: int) -> None:
        key = rank, one.bucket.index
        if rank == self._rank:
            self._client.deliver(one.bucket.index, stamp, one.values)
        elif rank not in self._gone:
            buffer = self._answers[key]
            try:
                if key in self._sent:
                    self._sent.pop(key).wait()
                buffer.values.copy_(one.values)
                buffer.stamp = stamp
                self._sent[key] = self._messages.send(buffer, rank, one.bucket.answer_tag)
            except RuntimeError as error:  # its own thread learns of it, too, and takes it off
                log.warning("an answer to rank %d could not be sent: %s", rank, error)

    def _serve(self, rank: int) -> None:
        try:
            for bucket, update in self._updates_of(rank):
                self.add(bucket, rank, update)
        except Exception as error:  # a thread's boundary: the script's thread raises it
            self._client.fail(error)
        self.leave(rank)

    def _updates_of(self, rank: int) -> Iterator[tuple[int, Tensor]]:
        """In their order, until the rank leaves or is lost."""
        buffers = {index: _buffer(one) for index, one in self.owned.items()}
        tags = {index: one.bucket.update_tag for index, one in self.owned.items()}
        try:
            coming = {i: self._messages.receive(buffers[i], rank, tags[i]) for i in buffers}
            while True:
                for index, buffer in buffers.items():
                    coming[index].wait(IDLE)
                    if buffer.stamp == LEFT:
                        return
                    yield index, buffer.values
                    coming[index] = self._messages.receive(buffer, rank, tags[index])
        except RuntimeError as error:  # what torch raises where a connection is closed
            log.warning("rank %d is lost to this rank's parameter server: %s", rank, error)


def _buffer(one: OwnedValues) -> StampedBuffer:
    return StampedBuffer(one.bucket.size, one.bucket.dtype)


@dataclass(slots=True, eq=False)
class Exchange:
    """One iteration's updates of this rank and the values that answer them, by bucket.

    works: updates under way. unanswered: buckets whose values have not come. clock: of the oldest
    values: how many iterations of every rank they hold.
    """

    updates: dict[int, StampedBuffer]
    answers: dict[int, StampedBuffer]
    works: list[Any] = field(default_factory=list)
    unanswered: set[int] = field(default_factory=set)
    clock: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """Values to go on with, in the answers of `taken`, and this rank's exchanges since, whose
    updates they do not hold. Good until the next `send`."""

    taken: Exchange
    later: tuple[Exchange, ...]


class ServerClient:
    """buckets: of the plan. iterations: whose updates have left. clock: how many iterations of
    every rank the values hold that `read` gave last. failure: what has ended it. refusals: of all
    ranks. timeout: how long values are waited for."""

    def __init__(
        self,
        buckets: Sequence[ClockedBucket],
        rank: int,
        staleness: int,
        messages: PeerMessages,
        refusals: Refusals,
        timeout: timedelta,
    ):
        self.iterations = 0
        self.clock = 0
        self._buckets = buckets
        self._rank = rank
        self._staleness = staleness
        self._messages = messages
        self._refusals = refusals
        self._timeout = timeout
        self._under_way: deque[Exchange] = deque()
        self._free: list[Exchange] = []
        self._changed = Condition()
        self.failure: Exception | None = None
        self._left = False
        owners = sorted({bucket.owner for bucket in buckets} - {rank})
        self._due: dict[int, SimpleQueue[Exchange | None]] = {o: SimpleQueue() for o in owners}
        self._threads = [
            Thread(target=self._collect, args=(o,), name=f"autosync-values-{o}", daemon=True)
            for o in owners
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raises what has failed before."""
        if self.failure is not None:
            raise self.failure

    def new_exchange(self) -> Exchange:
        """Buffers for the next iteration's updates; `send` takes them."""
        if self._free:
            return self._free.pop()
        sizes = {bucket.index: (bucket.size, bucket.dtype) for bucket in self._buckets}
        updates = {index: StampedBuffer(*size) for index, size in sizes.items()}
        return Exchange(updates, {index: StampedBuffer(*size) for index, size in sizes.items()})

    def send(self, exchange: Exchange, server: ShardServer) -> None:
        """The updates leave; `read` gives the values that come back."""
        exchange.unanswered = {bucket.index for bucket in self._buckets}
        exchange.clock = self.iterations + 1
        with self._changed:
            self._under_way.append(exchange)
        for queue in self._due.values():
            queue.put(exchange)
        for bucket in self._buckets:
            update = exchange.updates[bucket.index]
            update.stamp = self.iterations
            if bucket.owner == self._rank:
                server.add(bucket.index, self._rank, update.values)
                continue
            try:
                work = self._messages.send(update, bucket.owner, bucket.update_tag)
            except RuntimeError as error:
                raise self.fail(_lost(error)) from error
            exchange.works.append(work)
        self.iterations += 1

    def deliver(self, bucket: int, stamp: int, values: Tensor) -> None:
        """This rank's own server answers."""
        with self._changed:
            exchange = next(one for one in self._under_way if bucket in one.unanswered)
        exchange.answers[bucket].values.copy_(values)
        self._answered(exchange, bucket, stamp)

    def read(self) -> Reading | None:
        """The newest values that are here, or None where there are no newer ones than before.
        Waits while they would be more than `staleness` iterations old.

        Raises:
            SynchronizationFailed: a rank died, or has left before its updates were here.
            AutosyncError: it has left since it refused to go on, in its words.
        """
        least_clock = self.iterations - self._staleness
        with self._changed:
            self._wait(lambda: max(self.clock, self._newest_clock()) >= least_clock)
            complete = 0
            while complete < len(self._under_way) and not self._under_way[complete].unanswered:
                complete += 1
            if not complete:
                return None
            for _ in range(complete - 1):
                self._recycle(self._under_way.popleft())
            taken = self._under_way.popleft()
            self.clock = taken.clock
            later = tuple(self._under_way)
        self._recycle(taken)
        return Reading(taken, later)

    def read_own(self) -> None:
        """Until every update of this rank has been answered."""
        with self._changed:
            self._wait(lambda: not any(one.unanswered for one in self._under_way))

    @property
    def age(self) -> int:
        """Of the values that `read` gave last, in iterations."""
        return self.iterations - self.clock

    def drop(self) -> None:
        """Values were had otherwise, and hold all updates of all ranks."""
        with self._changed:
            for exchange in self._under_way:
                self._recycle(exchange)
            self._under_way.clear()
        self.clock = self.iterations

    def leave(self) -> None:
        """Report to the servers that are still there that no more updates will come."""
        if self._left:
            return
        self._left = True
        first = {bucket.owner: bucket for bucket in reversed(self._buckets)}
        works = []
        for owner, queue in self._due.items():
            queue.put(None)
            farewell = StampedBuffer(first[owner].size, first[owner].dtype)
            farewell.stamp = LEFT
            with suppress(RuntimeError):
                works.append(self._messages.send(farewell, owner, first[owner].update_tag))
        for work in works:
            with suppress(RuntimeError):
                work.wait()

    def join(self) -> None:
        """After `leave`: until every update of this rank has been answered."""
        for thread in self._threads:
            thread.join(self._timeout.total_seconds())

    def _newest_clock(self) -> int:
        clock = 0
        for exchange in self._under_way:
            if exchange.unanswered:
                break
            clock = exchange.clock
        return clock

    def _wait(self, until: Callable[[], bool]) -> None:
        """Called with the condition. Raises as soon as a peer has refused to go on."""
        deadline = time.monotonic() + self._timeout.total_seconds()
        while not self._changed.wait_for(lambda: self.failure is not None or until(), LOOK_SECONDS):
            if (refusal := self._refusals.find()) is not None:
                raise self.fail(refusal)
            if time.monotonic() > deadline:
                raise self.fail(_lost(f"no values came in {self._timeout}"))
        self.check()

    def _recycle(self, exchange: Exchange) -> None:
        """Its updates have been answered, so they have arrived."""
        try:
            while exchange.works:
                exchange.works[0].wait()
                exchange.works.pop(0)
        except RuntimeError as error:
            raise self.fail(_lost(error)) from error
        self._free.append(exchange)

    def _collect(self, owner: int) -> None:
        """The answers of one server, in their order."""
        mine = [bucket for bucket in self._buckets if bucket.owner == owner]
        while (exchange := self._due[owner].get()) is not None:
            try:
                works = [
                    self._messages.receive(exchange.answers[one.index], owner, one.answer_tag)
                    for one in mine
                ]
                for one, work in zip(mine, works, strict=True):
                    work.wait()
                    self._answered(exchange, one.index, exchange.answers[one.index].stamp)
            except RuntimeError as error:
                self.fail(_lost(f"rank {owner}, which owns bucket {mine[0].index}: {error}"))
                return

    def _answered(self, exchange: Exchange, bucket: int, stamp: int) -> None:
        if (gone := refused_for(stamp)) >= 0:
            words = f"rank {gone} has left, and updates of it that this rank waits for never come"
            self.fail(lost_peer(words, "rank", gone, state_is_split=False))
            return
        with self._changed:
            exchange.clock = min(exchange.clock, stamp)
            exchange.unanswered.discard(bucket)
            self._changed.notify_all()

    def fail(self, error: Exception) -> Exception:
        """Returns the first failure. Where a peer has refused to go on, that is what failed."""
        if self.failure is None:
            error = self._refusals.find() or error
        with self._changed:
            self.failure = self.failure or error
            self._changed.notify_all()
        return self.failure


def _lost(error: object) -> SynchronizationFailed:
    text = f"values of a parameter server with clocks did not arrive: {error}"
    return lost_peer(text, "process_group", None, state_is_split=False)
