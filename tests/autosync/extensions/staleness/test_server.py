"""When a parameter server with clocks answers, and with what; messages to other ranks are noted."""

from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from autosync.extensions.staleness.client import ServerClient
from autosync.extensions.staleness.server import (
    STAMP_BYTES,
    ClockedBucket,
    OwnedValues,
    PeerMessages,
    ShardServer,
    StampedBuffer,
    refused_for,
)
from autosync.runtime.transport.refusals import Refusals

BUCKET = ClockedBucket(index=0, owner=0, dtype=torch.float32, size=1, segments=())
UPDATE = torch.tensor([1.0])


class Arrived:
    def wait(self) -> None:
        """It is there."""


class Answers(PeerMessages):
    """The answers of a server on rank 0: (rank, stamp, value), in their order."""

    def __init__(self) -> None:
        self.given: list[tuple[int, int, float]] = []

    def send(self, buffer: StampedBuffer, rank: int, tag: int) -> Any:
        self.given.append((rank, buffer.stamp, float(buffer.values)))
        return Arrived()

    def deliver(self, bucket: int, stamp: int, own: int, values: Tensor) -> None:
        self.given.append((0, stamp, float(values)))

    def fail(self, error: Exception) -> object:
        raise error


def server(staleness: int) -> tuple[ShardServer, Answers]:
    """On rank 0 of two."""
    answers = Answers()
    owned = OwnedValues(BUCKET, torch.zeros(1), 2)
    return ShardServer([owned], 0, 2, staleness, answers, answers), answers


@pytest.mark.parametrize("staleness", [0, 1])
def test_ranks_in_step_get_each_others_updates_while_they_compute(staleness: int) -> None:
    """With a staleness of 1 the next step needs them; an answer without them would be in vain."""
    made, answers = server(staleness)
    for iteration in range(1, 4):
        answers.given.clear()
        made.add(0, 0, UPDATE)
        assert answers.given == []
        made.add(0, 1, UPDATE)
        assert answers.given == [(rank, iteration, 2.0 * iteration) for rank in range(2)]


def test_a_fast_rank_is_answered_until_its_next_step_would_read_too_old_values() -> None:
    made, answers = server(3)
    for _ in range(2):
        made.add(0, 0, UPDATE)
    assert answers.given == [(0, 0, 1.0), (0, 0, 2.0)]
    for _ in range(2):
        made.add(0, 0, UPDATE)
    assert len(answers.given) == 2
    made.add(0, 1, UPDATE)
    assert answers.given[2:] == [(0, 1, 5.0), (1, 1, 5.0)]
    made.add(0, 1, UPDATE)
    assert answers.given[4:] == [(0, 2, 6.0), (1, 2, 6.0)]


def test_ranks_within_the_bound_are_answered_after_another_has_left() -> None:
    made, answers = server(1)
    for rank in range(2):
        made.add(0, rank, UPDATE)
    answers.given.clear()
    made.leave(1)
    made.add(0, 0, UPDATE)
    assert answers.given == [(0, 1, 3.0)]
    made.add(0, 0, UPDATE)
    (last,) = answers.given[1:]
    assert refused_for(last[1]) == 1


def test_a_leaving_rank_gets_its_pending_answer() -> None:
    made, answers = server(1)
    made.add(0, 1, UPDATE)
    assert answers.given == []
    made.leave(1)
    assert answers.given == [(1, 0, 1.0)]


def test_a_rank_reads_its_own_updates_once() -> None:
    """The answer to its first one comes late, and holds its second one, too."""
    messages = Answers()
    refusals = Refusals(HashStore(), 0)
    client = ServerClient([BUCKET], 0, 1, messages, refusals, timedelta(seconds=60))
    owned = OwnedValues(BUCKET, torch.zeros(1), 2)
    made = ShardServer([owned], 0, 2, 1, messages, client)
    for _ in range(2):
        exchange = client.new_exchange()
        exchange.updates[0].values.copy_(UPDATE)
        client.send(exchange, made)
    made.add(0, 1, UPDATE)
    values = client.read()
    assert values is not None
    assert values[0].tolist() == [3.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_values_and_stamps_share_no_byte(size: int, dtype: torch.dtype) -> None:
    buffer = StampedBuffer(size, dtype)
    buffer.values.fill_(1.5)
    buffer.stamp = -(2**62)
    buffer.own = 7
    assert buffer.values.tolist() == [1.5] * size
    assert buffer.stamp == -(2**62)
    buffer.values.zero_()
    assert (buffer.stamp, buffer.own) == (-(2**62), 7)
    assert len(buffer.raw) < size * dtype.itemsize + 2 * STAMP_BYTES
