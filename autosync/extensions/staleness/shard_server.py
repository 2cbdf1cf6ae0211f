"""A rank's parameter server with clocks (stale synchronous parallel: Ho et al., "More effective
distributed ML via a stale synchronous parallel parameter server", NIPS 2013).

Updates are added as they arrive, whoever they are of, and each is answered with the values as they
are when these are new enough for the rank's next step, not only for this one. So an answer travels
while the rank computes: had it left with values as old as may be now, the next step would be one
iteration further and wait for the answer to its own update.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from threading import Lock, Thread
from typing import Any, Protocol

from torch import Tensor

from autosync.extensions.staleness.clocked_buckets import ClockedBucket
from autosync.extensions.staleness.stamped_messages import PeerMessages, StampedBuffer
from autosync.runtime.transport.gloo import sum_type

log = logging.getLogger("autosync")

LEFT = -1
"""Stamp of what a rank sends in place of an update when it has no more of them."""

IDLE = timedelta(days=365)
"""How long a server waits for an update: as long as a script computes, evaluates or loads."""


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
        needs updates of it that do not come is told so."""
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
