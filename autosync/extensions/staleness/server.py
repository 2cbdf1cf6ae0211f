"""Parameter servers with clocks, and what travels to and from them (stale synchronous parallel: Ho
et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS
2013).

A server adds the updates of all ranks as they arrive. It answers each update with its values, as
soon as these are new enough for the next step of the rank that sent it, not only for this step. So
an answer travels while the rank computes. Values as old as this step allows would be too old for
the next one, which would then wait for the answer to its own update.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from threading import Lock, Thread
from typing import Any, Protocol

import torch
from torch import Tensor

from autosync.plan import Plan
from autosync.runtime.layout.segments import Segment, bucket_segments
from autosync.runtime.transport.gloo import sum_type

log = logging.getLogger("autosync")

STAMP_BYTES = 16

LEFT = -1
"""Stamp of what a rank sends in place of an update when it has no more of them."""

IDLE = timedelta(days=365)
"""How long a server waits for an update: as long as a script computes, evaluates or loads."""


class StampedBuffer:
    """Flat values and two integers, in one piece of memory that travels as bytes.

    stamp: of an update its iteration, of an answer its clock. own: of an answer, how many updates
    of the rank that gets it the values hold.
    """

    def __init__(self, size: int, dtype: torch.dtype):
        payload = -(-size * dtype.itemsize // STAMP_BYTES) * STAMP_BYTES
        self.raw = torch.zeros(payload + STAMP_BYTES, dtype=torch.uint8, device="cpu")
        self.values: Tensor = self.raw[: size * dtype.itemsize].view(dtype)
        stamps = self.raw[payload:].view(torch.int64)
        self._stamp, self._own = stamps[0], stamps[1]

    @property
    def stamp(self) -> int:
        return int(self._stamp)

    @stamp.setter
    def stamp(self, value: int) -> None:
        self._stamp.fill_(value)

    @property
    def own(self) -> int:
        return int(self._own)

    @own.setter
    def own(self, value: int) -> None:
        self._own.fill_(value)


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

    def gathered(self, parameters: Sequence[Tensor]) -> Tensor:
        """The parameters' values, `(size,)`."""
        flat = torch.zeros(self.size, dtype=self.dtype, device="cpu")
        self.gather(parameters, flat)
        return flat

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

    def changed(self, flat: Tensor, parameters: Sequence[Tensor]) -> Iterator[int]:
        """Variables that have no longer the values that `scatter` gave them of `flat`."""
        for segment in self.segments:
            own = parameters[segment.variable].detach()[segment.region]
            value = flat[segment.start : segment.stop].view(segment.shape).to(own.dtype)
            if not torch.allclose(own, value, rtol=0.0, atol=0.0, equal_nan=True):
                yield segment.variable


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

    def deliver(self, bucket: int, stamp: int, own: int, values: Tensor) -> None:
        """Takes an answer, and copies its values. own: see `StampedBuffer`."""
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

    def join(self, seconds: float) -> None:
        """Until every other rank has left, or for so long."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

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
            self._client.deliver(one.bucket.index, stamp, one.clocks[rank], one.values)
        elif rank not in self._gone:
            buffer = self._answers[key]
            try:
                if key in self._sent:
                    self._sent.pop(key).wait()
                buffer.values.copy_(one.values)
                buffer.stamp = stamp
                buffer.own = one.clocks[rank]
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
