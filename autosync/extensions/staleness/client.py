"""The client of parameter servers with clocks: sends a rank's updates, and waits for values that
are new enough for its next step."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import takewhile
from queue import SimpleQueue
from threading import Condition, Thread
from typing import Any

from torch import Tensor

from autosync.extensions.staleness.server import (
    LEFT,
    ClockedBucket,
    PeerMessages,
    ShardServer,
    StampedBuffer,
    refused_for,
)
from autosync.runtime.execution.monitor import LOOK_SECONDS
from autosync.runtime.transport.base import SynchronizationFailed, lost_peer
from autosync.runtime.transport.refusals import Refusals


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

    def deliver(self, bucket: int, stamp: int, own: int, values: Tensor) -> None:
        """This rank's own server answers."""
        with self._changed:
            exchange = next(one for one in self._under_way if bucket in one.unanswered)
        exchange.answers[bucket].values.copy_(values)
        exchange.answers[bucket].own = own
        self._answered(exchange, bucket, stamp)

    def read(self) -> dict[int, Tensor] | None:
        """The newest values that are here, by bucket, with this rank's updates since; None where
        there are no newer ones than before. They hold until the next `send`. Waits while they would
        be more than `staleness` iterations old.

        Raises:
            SynchronizationFailed: a rank died, or has left before its updates were here.
            AutosyncError: it has left since it refused to go on, in its words.
        """
        least_clock = self.iterations - self._staleness
        with self._changed:
            self._wait(lambda: max(self.clock, self._newest_clock()) >= least_clock)
            answered = self._answered_exchanges()
            if not answered:
                return None
            for exchange in answered:
                self._under_way.popleft()
                self._recycle(exchange)
            self.clock = answered[-1].clock
            answers = answered[-1].answers
            for exchange in self._under_way:
                for index, answer in answers.items():
                    update = exchange.updates[index]
                    if update.stamp >= answer.own:  # else the server had it when it answered
                        answer.values.add_(update.values)
        return {index: answer.values for index, answer in answers.items()}

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

    def join(self, seconds: float) -> None:
        """After `leave`: until every update of this rank has been answered, or for so long."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _answered_exchanges(self) -> list[Exchange]:
        return list(takewhile(lambda one: not one.unanswered, self._under_way))

    def _newest_clock(self) -> int:
        return max((one.clock for one in self._answered_exchanges()), default=0)

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
            error = self._refusals.cause() or error
        with self._changed:
            self.failure = self.failure or error
            self._changed.notify_all()
        return self.failure


def _lost(error: object) -> SynchronizationFailed:
    text = f"values of a parameter server with clocks did not arrive: {error}"
    return lost_peer(text, "process_group", None, state_is_split=False)
