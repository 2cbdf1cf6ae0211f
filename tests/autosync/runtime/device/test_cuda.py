"""Plans on NVIDIA GPUs: what the other files show in host memory, with CUDA tensors, and that
streams are kept in order without being waited for.

One GPU is enough: several ranks share it over gloo, and NCCL runs with one rank. With more, NCCL
runs on all of them. Read `pytest -rs`: what is skipped says what it takes.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore

from autosync.codes import Op
from autosync.errors import NotSupported
from autosync.runtime.attachment import attach
from autosync.runtime.device.model_device import UNVERIFIED, _warn_unverified, warn_of_backend
from autosync.runtime.device.streams import ONE_ORDER, GpuStreams
from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.runtime.execution.watchdog import Watchdog
from autosync.runtime.transport.nccl import GroupIdentity, nccl_start, new_nccl_group
from autosync.runtime.transport.team_role import TeamRole
from autosync.search.designs.design_table import hand_designed
from autosync.search.space import Space
from autosync.strategy import Schedule
from tests.autosync.runtime import training
from tests.autosync.runtime.cases import (
    Case,
    attached,
    data,
    loss_of,
    make_model,
    make_optimizer,
    plan,
    train_reference,
    worst_difference,
)
from tests.autosync.runtime.drawn import KINDS, Drawn, domain
from tests.autosync.runtime.execution import (
    test_exact,
    test_failures,
    test_pending,
    test_random,
    test_training,
)
from tests.autosync.runtime.parts import linear
from tests.autosync.runtime.payloads import test_encodings, test_factors, test_sparse
from tests.autosync.runtime.place import HERE
from tests.autosync.runtime.ranks import Ranks, ranks
from tests.autosync.runtime.training import OVERLAP
from tests.autosync.runtime.updates import test_state

GPUS = torch.cuda.device_count()
LONG_CYCLES = 2_000_000_000
"""Of `torch.cuda._sleep`: about a second, which the host needs a hundredth of for an iteration."""
SHORT_CYCLES = 20_000_000
LATENESS_SECONDS = 1e-4
"""Of marks read as seconds: an event is good for microseconds."""

gpu = pytest.mark.skipif(GPUS < 1, reason="NOT VERIFIED: this machine has no NVIDIA GPU")
cuda = [pytest.mark.cuda, gpu]
several = pytest.mark.skipif(
    GPUS < 2, reason=f"NOT VERIFIED: NCCL between ranks needs 2 GPUs, this machine has {GPUS}"
)


@pytest.fixture(scope="module")
def pair() -> Iterator[Ranks]:
    """In host memory: for refusals."""
    with ranks(2) as made:
        yield made


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("cuda", 2), id="gloo-2"),
        pytest.param(("cuda", 3), id="gloo-3"),
        pytest.param(("nccl", 1), id="nccl-1"),
        pytest.param(("nccl", max(2, min(GPUS, 4))), id="nccl-all", marks=several),
    ],
)
def pool(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    way, world = request.param
    with ranks(world, way=way) as made:
        yield made


@pytest.fixture(scope="module")
def gloo() -> Iterator[Ranks]:
    with ranks(2, way="cuda") as made:
        yield made


@pytest.fixture(scope="module")
def nccl() -> Iterator[Ranks]:
    with ranks(max(1, min(GPUS, 4)), way="nccl") as made:
        yield made


def on_gpus(test: Callable[..., None]) -> Callable[..., None]:
    for mark in cuda:
        test = mark(test)
    return test


# --- refusals, and the warning


def refused(rank: int, world: int, device: str, of: str) -> str:
    model = make_model("mlp")
    (model if of == "all" else linear(model, 2)).to(device)
    optimizer = make_optimizer("sgd", model)
    names = tuple(name for name, _ in model.named_parameters())
    try:
        attach(model, optimizer, plan(Case(), make_model("mlp"), world), names)
    except NotSupported as error:
        return f"{error} {error.remedy}"
    return ""


def test_another_device_is_refused_by_name(pair: Ranks) -> None:
    for answer in pair.run(refused, "meta", "all"):
        assert "'0.weight' is on meta" in answer
        assert "`ddp`" in answer


@on_gpus
def test_a_model_on_two_devices_is_refused_by_name(pair: Ranks) -> None:
    for answer in pair.run(refused, "cuda:0", "one layer"):
        assert "'2.weight' is on cuda:0" in answer
        assert "others are on cpu" in answer


def test_it_warns_once_between_several_gpus() -> None:
    _warn_unverified.cache_clear()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for backend, world in (("gloo", 2), ("nccl", 1)):
            warn_of_backend(backend, world)
        assert not seen
        warn_of_backend("nccl", 2)
        warn_of_backend("nccl", 2)
    assert [str(one.message) for one in seen] == [UNVERIFIED]


# --- exactness: the same cases as in host memory


@on_gpus
@pytest.mark.parametrize("method", test_exact.METHODS)
def test_equals_single_process(pool: Ranks, method: str) -> None:
    cases = [
        Case(optimizer=optimizer, method=method, partition=partition, schedule=schedule,
             groups=3, iterations=3)
        for optimizer in ("sgd", "adamw")
        for partition in test_exact.PARTITIONS
        for schedule in (Schedule(), OVERLAP)
    ]  # fmt: skip
    answers = zip(*pool.run(test_exact.train_all, cases), strict=True)
    for case, results in zip(cases, answers, strict=True):
        assert max(difference for difference, _ in results) < 2e-6, case
        assert all(weights == results[0][1] for _, weights in results), case


SCRIPTS = (
    training.train_plain,
    test_training.scheduled,
    test_training.zeroed_at_once,
    test_training.clipped,
    test_training.accumulated,
    test_state.evaluated,
    test_state.saved_at_once,
    test_state.resumed,
    test_training.checkpointed,
)


@on_gpus
@pytest.mark.parametrize("function", SCRIPTS, ids=lambda function: function.__name__)
def test_what_scripts_do(pool: Ranks, function: Callable[..., float]) -> None:
    training.each_case(pool, function)


@on_gpus
@pytest.mark.parametrize("model", ["cnn", "tied", "branching"])
def test_models(gloo: Ranks, model: str) -> None:
    cases = [Case(model=model, schedule=OVERLAP), Case(model=model, method="zero")]
    training.each_case(gloo, training.train_plain, *cases)


@on_gpus
def test_bf16_parameters(gloo: Ranks) -> None:
    """Of two ranks: three add up bf16 in an order of their own."""
    training.each_case(gloo, test_training.half_precision)


@on_gpus
def test_module_buffers(gloo: Ranks) -> None:
    cases = [Case(model="cnn"), Case(model="cnn", schedule=OVERLAP)]
    training.each_case(gloo, test_training.buffers_in_step, *cases)


@on_gpus
def test_integer_gradients_are_bit_equal(gloo: Ranks) -> None:
    cases = [
        Case(optimizer="plain", method=method, partition=partition, groups=3)
        for method in ("all_reduce", "tree", "ps", "rs", "zero", "mixed")
        for partition in ("whole", "uneven", "pieces")
    ]
    training.each_case(gloo, test_training.integer, *cases)


@on_gpus
def test_scalers(gloo: Ranks) -> None:
    training.each_case(gloo, test_training.scaled)
    for make in (test_pending.Fused(), test_pending.Plain()):
        for differences in gloo.run(test_pending.scaled, make, "optimizer"):
            assert max(differences) < 3e-6, make
    for differences in gloo.run(test_pending.unscaled_by_hand):
        assert max(differences) < 3e-6


@on_gpus
@pytest.mark.parametrize("change", [test_pending.clip_norm, test_pending.replace_unread])
def test_gradients_that_a_script_reads(gloo: Ranks, change: test_pending.Change) -> None:
    for differences in gloo.run(test_pending.changed, test_pending.DEFERRED, change):
        assert max(differences) < 3e-6


@on_gpus
@pytest.mark.parametrize("kind", test_sparse.OPTIMIZERS)
@pytest.mark.parametrize("way", list(test_sparse.WAYS))
def test_touched_rows(gloo: Ranks, way: str, kind: str) -> None:
    check_rows(gloo, way, kind)


@on_gpus
def test_touched_rows_beside_nccl(nccl: Ranks) -> None:
    check_rows(nccl, "gathered", "momentum")


def check_rows(pool: Ranks, way: str, kind: str) -> None:
    for schedule in (Schedule(), Schedule("priority", overlap_forward=True)):
        results = pool.run(test_sparse.run, way, kind, schedule, True, None)
        assert max(difference for difference, _ in results) < 2e-6
        first = results[0][1]
        if way == "gathered" and kind in ("momentum", "nesterov"):
            # Every rank updates, and CUDA adds rows that stand twice in any order.
            assert all(
                abs(a - b) < 1e-6
                for _, values in results
                for a, b in zip(values, first, strict=True)
            )
        else:
            assert all(values == first for _, values in results)


@on_gpus
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_factors_of_layers(pool: Ranks, kind: str) -> None:
    for schedule in (Schedule(), Schedule("priority", overlap_forward=True)):
        results = pool.run(test_factors.run, kind, schedule, True, None, False)
        assert max(difference for difference, _ in results) < 2e-6
        assert all(values == results[0][1] for _, values in results)


@on_gpus
@pytest.mark.parametrize("name", list(test_encodings.ROUNDING))
@pytest.mark.parametrize("method", test_encodings.METHODS)
def test_halves(gloo: Ranks, method: str, name: str) -> None:
    for worst, finer, _ in gloo.run(test_encodings.excess, method, name):
        assert 0 < worst <= 1
        assert finer


@on_gpus
def test_powersgd(gloo: Ranks) -> None:
    for first, last, lost, bias in gloo.run(test_encodings.feed_back, 60):
        assert last < 0.1 * first
        assert max(lost, bias) < 1e-3


@on_gpus
@pytest.mark.parametrize("model", ["convolutions", "transformer", "sparse_lookup", "shared"])
def test_hand_designed_strategies(gloo: Ranks, model: str) -> None:
    """torch's momentum of sparse gradients adds rows that stand twice in any order on CUDA, so that
    ranks which all update a table round apart."""
    where = domain(model, 2, 1)
    optimizer = next(kind for name, kind in KINDS if name == model)
    designed = hand_designed(where, Space())
    cases = [
        Drawn(model, optimizer, test_random.compiled(strategy, where), name)
        for name, strategy in designed
        if strategy.schedule.order != "ddp"
    ]
    test_random.check(gloo, cases, bit_equal=model != "sparse_lookup")


@on_gpus
@pytest.mark.parametrize(("method", "victim"), [("zero", 1), ("mixed", 0)])
def test_a_killed_rank_is_an_error_on_every_survivor(method: str, victim: int) -> None:
    case = Case(optimizer="sgd", method=method, schedule=OVERLAP, groups=4)
    with ranks(3, timeout_seconds=10.0, way="cuda") as pool:
        for seen in test_failures.mourn(pool, case, victim, "backward"):
            assert "A peer died" in seen.error
            assert seen.again
            assert seen.released


# --- streams: kept in order, and not waited for


def nap() -> None:
    torch.cuda._sleep(SHORT_CYCLES)


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
                with streams.landing():
                    nap()
                loss.backward()
            optimizer.step()
            with streams.landing():
                nap()
        attachment.detach()
        found.append(worst_difference(model, train_reference(case, world)))
    return found


@on_gpus
@pytest.mark.parametrize("late", ["computing", "landing"])
def test_streams_wait_for_each_other(pool: Ranks, late: str) -> None:
    cases = [
        Case(optimizer="adamw", method=method, partition="uneven", schedule=schedule, groups=4)
        for method in ("all_reduce", "rs", "zero", "ps", "mixed")
        for schedule in (Schedule(), OVERLAP)
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


@on_gpus
@pytest.mark.parametrize("method", ["all_reduce", "rs", "zero", "ps"])
def test_the_script_runs_ahead_where_nothing_is_waited_for(gloo: Ranks, method: str) -> None:
    """Where the plan lets everything run into the next forward pass, neither backward() nor
    step() waits for a message, or for the GPU at all."""
    for ahead in gloo.run(runs_ahead, Case(method=method, schedule=OVERLAP)):
        assert ahead == [True, True]


@on_gpus
@pytest.mark.parametrize("method", ["all_reduce", "rs", "zero", "ps"])
@pytest.mark.parametrize("schedule", [Schedule(), OVERLAP], ids=["fifo", "overlap"])
def test_on_nccl_the_script_never_waits(nccl: Ranks, method: str, schedule: Schedule) -> None:
    for ahead in nccl.run(runs_ahead, Case(method=method, schedule=schedule)):
        assert ahead == [True, True]


def free_compute(rank: int, world: int) -> bool:
    """Whether the script's stream does all its work while a message has no chance to leave: rank 1
    comes to its backward pass only when rank 0 has done so."""
    model, optimizer, attachment = attached(Case(schedule=OVERLAP), world)
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["rank 0 has computed"], timedelta(seconds=60))
    loss_of(model, 0, rank).backward()
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


@on_gpus
def test_a_message_in_flight_does_not_stop_the_computing_stream(gloo: Ranks) -> None:
    assert gloo.run(free_compute) == [True, True]


def times(rank: int, world: int) -> list[tuple[float, ...]]:
    trace = ExecutionTrace()
    model, optimizer, attachment = attached(Case(method="zero", schedule=OVERLAP), world, trace)
    for iteration in range(3):
        optimizer.zero_grad()
        loss_of(model, iteration, rank).backward()
        optimizer.step()
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
    watch.add(record)
    time.sleep(0.001)
    lost = watch.lost()
    late = lost is not None and lost.record is record
    torch.cuda.synchronize()
    return late, watch.lost() is None


@on_gpus
def test_a_message_that_the_device_never_reaches_is_found(nccl: Ranks) -> None:
    for found in nccl.run(late_message):
        assert found == (True, True)


# --- NCCL's own operations


def nccl_operations(rank: int, world: int) -> dict[str, list[float]]:
    """Each operation over all ranks on 2 * world elements of which rank r gives r + 1."""
    device = HERE.device
    store = PrefixStore("operations", dist.distributed_c10d._get_default_store())
    identity = GroupIdentity("autosync/test", tuple(range(world)))
    group = new_nccl_group(store, rank, timedelta(seconds=60), device, identity)
    found = {}
    for operation in (Op.ALL_REDUCE, Op.REDUCE, Op.BROADCAST, Op.REDUCE_SCATTER, Op.ALL_GATHER,
                      Op.PUSH, Op.PULL):  # fmt: skip
        wire = torch.full((2 * world,), float(rank + 1), device=device)
        role = TeamRole(operation, rank, world - 1, world, 2 * world, 0)
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            nccl_start(group, role, wire)()()
        stream.synchronize()
        got: list[Tensor] = [wire[span] for span in role.received()]
        found[operation.name] = torch.cat(got).tolist() if got else []
    group.abort()
    return found


@on_gpus
def test_operations_of_nccl(nccl: Ranks) -> None:
    world = nccl.world
    total = world * (world + 1) / 2
    for rank, found in enumerate(nccl.run(nccl_operations)):
        root = rank == world - 1
        others = [(rank + step) % world for step in range(1, world)]
        assert found["ALL_REDUCE"] == [total] * 2 * world
        assert found["REDUCE"] == found["PUSH"] == ([total] * 2 * world if root else [])
        assert found["BROADCAST"] == found["PULL"] == ([] if root else [float(world)] * 2 * world)
        assert found["REDUCE_SCATTER"] == [total] * 2
        assert found["ALL_GATHER"] == [float(peer + 1) for peer in others for _ in range(2)]
