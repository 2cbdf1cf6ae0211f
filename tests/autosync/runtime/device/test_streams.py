"""Streams of a GPU are kept in order, and not waited for."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from autosync.runtime.device.streams import ONE_ORDER, GpuStreams
from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.runtime.execution.message_queue import Watchdog
from autosync.strategy import Schedule
from tests.autosync.runtime.cases import (
    Case,
    attached,
    data,
    iterate,
    loss_of,
    train_reference,
    worst_difference,
)
from tests.autosync.runtime.device.gpus import on_gpus, on_real_gpus
from tests.autosync.runtime.place import HERE
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.training import OVERLAP

LONG_CYCLES = 700_000_000
"""Of `torch.cuda._sleep`: a third of a second, of which the host needs a tenth for an iteration."""
SHORT_CYCLES = 10_000_000
LATENESS_SECONDS = 1e-4
"""Of marks read as seconds: an event is good for microseconds."""


@pytest.fixture(params=["gloo", "nccl_pair"])
def pool(request: pytest.FixtureRequest) -> Ranks:
    found: Ranks = request.getfixturevalue(request.param)
    return found


def nap() -> None:
    if HERE.device.type == "cuda":
        torch.cuda._sleep(SHORT_CYCLES)
    else:
        time.sleep(0.002)


@contextmanager
def slow_computing(model: nn.Module) -> Iterator[None]:
    """Every layer's forward and backward are late on the script's stream."""

    def in_both(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nap()
        output.register_hook(lambda gradient: nap())

    handles = [layer.register_forward_hook(in_both) for layer in model.children()]
    yield
    for handle in handles:
        handle.remove()


def raced(rank: int, world: int, cases: list[Case], late: str) -> list[float]:
    """Training in which one of the streams is late: whoever does not wait for it reads values
    that are not there yet, or writes over values that are still read."""
    found = []
    for case in cases:
        model, optimizer, attachment = attached(case, world)
        streams = attachment.engine.streams
        for iteration in range(case.iterations):
            optimizer.zero_grad()
            if late == "computing":
                with slow_computing(model):
                    loss_of(model, iteration, rank).backward()
            else:
                loss = loss_of(model, iteration, rank)
                with streams.completing():
                    nap()
                loss.backward()
            optimizer.step()
            with streams.completing():
                nap()
        attachment.detach()
        found.append(worst_difference(model, train_reference(case, world)))
    return found


@on_gpus
@pytest.mark.parametrize("late", ["computing", "landing"])
def test_streams_wait_for_each_other(pool: Ranks, late: str) -> None:
    cases = [
        Case(optimizer="adamw", method=method, partition="uneven", schedule=schedule, groups=4)
        for method, schedule in (
            ("all_reduce", Schedule()),
            ("rs", OVERLAP),
            ("zero", OVERLAP),
            ("ps", OVERLAP),
            ("mixed", Schedule()),
        )
    ]
    for differences in pool.run(raced, cases, late):
        assert max(differences) < 3e-6, dict(zip(cases, differences, strict=True))


def runs_ahead(rank: int, world: int, case: Case) -> list[bool]:
    """Whether the GPU was still at the iteration's first operation when the script had done its
    whole iteration; once for every measured iteration."""
    model, optimizer, attachment = attached(case, world)
    inputs, wanted = (tensor.to(HERE.device) for tensor in data(0, rank))  # bringing them waits

    def iterate() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()

    for _ in range(3):  # memory is allocated, and kernels are loaded, which waits
        iterate()
    attachment.engine.flush()
    torch.cuda.synchronize()
    ahead = []
    for _ in range(2):
        torch.cuda._sleep(LONG_CYCLES)
        asleep = torch.cuda.Event()
        asleep.record()
        iterate()
        ahead.append(not asleep.query())
        attachment.engine.flush()
        torch.cuda.synchronize()
    attachment.detach()
    return ahead


@on_real_gpus
@pytest.mark.parametrize("method", ["all_reduce", "rs", "zero", "ps"])
def test_the_script_runs_ahead_where_nothing_is_waited_for(gloo: Ranks, method: str) -> None:
    """Where the plan lets everything run into the next forward pass, neither backward() nor
    step() waits for a message, or for the GPU at all."""
    for ahead in gloo.run(runs_ahead, Case(method=method, schedule=OVERLAP)):
        assert ahead == [True, True]


@on_real_gpus
@pytest.mark.parametrize("method", ["all_reduce", "rs", "zero", "ps"])
def test_on_nccl_the_script_never_waits(nccl_pair: Ranks, method: str) -> None:
    for schedule in (Schedule(), OVERLAP):
        for ahead in nccl_pair.run(runs_ahead, Case(method=method, schedule=schedule)):
            assert ahead == [True, True], schedule


def free_compute(rank: int, world: int) -> bool:
    """Whether the script's stream does all its work while a message has no chance to leave: rank 1
    comes to its backward pass only when rank 0 has done so."""
    model, optimizer, attachment = attached(Case(schedule=OVERLAP), world)
    store = dist.distributed_c10d._get_default_store()
    loss_of(model, 0, rank).backward()  # the first, in which ranks compare their values
    optimizer.step()
    attachment.engine.flush()
    torch.cuda.synchronize()
    if rank == 1:
        store.wait(["rank 0 has computed"], timedelta(seconds=60))
    optimizer.zero_grad()
    loss_of(model, 1, rank).backward()
    optimizer.step()
    computed = torch.cuda.Event()
    computed.record()
    if rank == 0:
        deadline = time.monotonic() + 30
        while not computed.query() and time.monotonic() < deadline:
            time.sleep(0.001)
        free = bool(computed.query())
        store.set("rank 0 has computed", "")
    else:
        free = True
    attachment.detach()
    return free


@on_real_gpus
def test_a_message_in_flight_does_not_stop_the_computing_stream(gloo: Ranks) -> None:
    assert gloo.run(free_compute) == [True, True]


def times(rank: int, world: int) -> list[tuple[float, ...]]:
    trace = ExecutionTrace()
    model, optimizer, attachment = attached(Case(method="zero", schedule=OVERLAP), world, trace)
    iterate(model, optimizer, rank, range(3))
    attachment.detach()
    now = time.monotonic()
    return [(e.queued_seconds, e.start_seconds, e.end_seconds, now) for e in trace.events]


@on_gpus
def test_a_trace_has_the_times_of_the_device(pool: Ranks) -> None:
    for events in pool.run(times):
        assert events
        for moments in events:
            for earlier, later in pairwise(moments):
                assert earlier <= later + LATENESS_SECONDS


def late_message(rank: int, world: int) -> tuple[bool, bool]:
    """A message that the GPU has not reached, before and after it has."""
    _, _, attachment = attached(Case(), world)
    record = attachment.engine.messages[0]
    attachment.detach()
    streams = GpuStreams(HERE.device, ONE_ORDER)
    watch = Watchdog(streams, patience_seconds=0.0)
    torch.cuda._sleep(LONG_CYCLES)
    record.ended_event = streams.record_event()
    watch.add(record, record.ended_event)
    time.sleep(0.001)
    lost = watch.lost()
    late = lost is not None and lost[0] is record
    torch.cuda.synchronize()
    return late, watch.lost() is None


@on_real_gpus
def test_a_message_that_the_device_never_reaches_is_found(nccl_pair: Ranks) -> None:
    for found in nccl_pair.run(late_message):
        assert found == (True, True)
