"""A running job as a workload: its state is put back, its ranks' devices and answers."""

from collections.abc import Callable, Sized
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from autosync.errors import InvalidInput, NotSupported
from autosync.extensions.offload.arena import Arena
from autosync.runtime.transport.base import SynchronizationFailed
from autosync.trials.commands import MeasuredIterations, PassDone
from autosync.trials.contract import TrialFailed, TrialRequest
from autosync.trials.iterations import peak_bytes, reset_peak
from autosync.trials.live import job_cluster
from autosync.trials.live.job import ControlGroup, LiveJob, open_control
from autosync.trials.live.job_cluster import (
    RankReport,
    device_memory_gb,
    device_of_report,
    device_type_of,
    gpu_sharing,
    ranks_of_hosts,
)
from autosync.trials.live.job_pool import JobPool, counted_nics
from autosync.trials.live.snapshot import take_snapshot
from autosync.trials.request_names import GPU_IN_TURNS
from tests.autosync.trials.strategies import ddp, small_domain


def test_a_scaler_whose_step_failed_half_way_begins_anew() -> None:
    """It remembers, beside its state, which optimizer's gradients it has divided already."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=64.0)
    before = take_snapshot(model, [optimizer], [scaler])
    for _ in range(2):
        scaler.scale(model(torch.ones(1, 3)).sum()).backward()
        scaler.unscale_(optimizer)  # torch refuses a second time before the next update()
        before.restore()
    assert scaler.get_scale() == 64.0


def test_a_fused_step_that_failed_half_way_leaves_no_scale_behind() -> None:
    """By which a GradScaler would multiply that of the next step."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    scaler = GradScaler("cpu", init_scale=64.0)

    def step() -> None:
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1, 3)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    def fail(*_: Any) -> None:
        raise RuntimeError("a peer is gone")

    before = take_snapshot(model, [optimizer], [scaler])
    step()
    values = [parameter.detach().clone() for parameter in model.parameters()]
    before.restore()
    failing = optimizer.register_step_pre_hook(fail)
    with pytest.raises(RuntimeError, match="a peer is gone"):
        step()
    failing.remove()
    before.restore()
    step()
    pairs = zip(values, model.parameters(), strict=True)
    assert all(torch.equal(value, parameter) for value, parameter in pairs)


def test_a_scale_that_a_script_has_set_stays() -> None:
    """For a fused optimizer, of gradients that are multiplied without a GradScaler."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    scale = torch.tensor(64.0)
    optimizer.__dict__["grad_scale"] = scale
    take_snapshot(model, [optimizer]).restore()
    assert optimizer.__dict__["grad_scale"] is scale


def test_several_optimizers_are_put_back() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    optimizers = [
        torch.optim.AdamW(model[0].parameters(), lr=0.1),
        torch.optim.SGD(model[1].parameters(), lr=0.2, momentum=0.9),
    ]
    before = take_snapshot(model, optimizers)
    values = [parameter.detach().clone() for parameter in model.parameters()]
    model(torch.ones(1, 3)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 9.0
    before.restore()
    assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers] == [0.1, 0.2]
    assert not any(optimizer.state for optimizer in optimizers)
    pairs = zip(values, model.parameters(), strict=True)
    assert all(torch.equal(value, parameter) for value, parameter in pairs)


def test_what_an_optimizer_trains_beside_the_model_is_put_back() -> None:
    """A loss may have parameters of its own."""
    model, of_loss = nn.Linear(3, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*model.parameters(), *of_loss.parameters()], lr=0.1)
    bias = of_loss.bias.detach().clone()
    before = take_snapshot(model, [optimizer])
    of_loss(model(torch.ones(1, 3))).sum().backward()
    optimizer.step()
    assert not torch.equal(of_loss.bias, bias)
    before.restore()
    assert torch.equal(of_loss.bias, bias)
    assert of_loss.bias.grad is None


class Averaging(nn.Module):
    """Puts another tensor in place of its buffer in every forward pass."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(3))
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.5 * self.mean + x.mean(dim=0)
        found: Tensor = self.weight * (x - self.mean)
        return found


def test_a_buffer_that_forward_replaces_is_put_back() -> None:
    model = Averaging()
    buffer = model.mean
    before = take_snapshot(model, [])
    for _ in range(2):
        model(torch.full((2, 3), 4.0))
        assert not torch.equal(model.mean, torch.ones(3))
        before.restore()
        assert model.mean is buffer
        assert torch.equal(buffer, torch.ones(3))


@pytest.mark.parametrize("sampled", [False, True])
def test_a_data_loader_with_a_generator_begins_anew(sampled: bool) -> None:
    rows = cast(Dataset[Tensor], list(torch.arange(16.0)))
    generator = torch.Generator().manual_seed(5)
    loader: DataLoader[Tensor] = DataLoader(rows, shuffle=True, generator=generator)
    if sampled:
        sampler = RandomSampler(cast(Sized, rows), generator=generator)
        loader = DataLoader(rows, batch_sampler=BatchSampler(sampler, 2, drop_last=False))
    before = take_snapshot(nn.Linear(3, 2), [], batches=loader)
    drawn = torch.cat(list(loader)).tolist()
    before.restore()
    assert torch.cat(list(loader)).tolist() == drawn
    assert torch.cat(list(loader)).tolist() != drawn


class Average:
    """Keeps tensors of the device, as an average of weights does."""

    def __init__(self, model: nn.Module) -> None:
        self.values: list[Tensor] = [p.detach().clone() for p in model.parameters()]

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values, "shape": (2, self.values[0])}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.values = state_dict["values"]
        assert torch.equal(state_dict["shape"][1], self.values[0])


def test_a_snapshot_takes_nothing_of_the_devices_memory() -> None:
    with Arena(1_000_000) as device:
        model = nn.Linear(30, 20)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        average = Average(model)

        def step() -> None:
            model(torch.ones(1, 30)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        step()
        held = device.allocated_bytes()
        before = take_snapshot(model, [optimizer], [average])
        assert device.allocated_bytes() == held
        moments = [state["exp_avg"].clone() for state in optimizer.state.values()]
        for _ in range(2):
            step()
            average.values[0].zero_()
            before.restore()
            pairs = zip(moments, optimizer.state.values(), strict=True)
            assert all(torch.equal(one, state["exp_avg"]) for one, state in pairs)
            assert average.values[0].any()


def test_an_unknown_gpu_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(name="NVIDIA L20", total_memory=48_000_000_000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    gpu = torch.device("cuda", 0)
    with pytest.raises(NotSupported, match="'NVIDIA L20' is of no known device type"):
        device_type_of(gpu)
    assert device_type_of(gpu, "rtx-3090") == "rtx-3090"
    assert device_memory_gb(gpu) == 48.0


@pytest.mark.parametrize(("others", "words"), [("x", f"2 ranks {GPU_IN_TURNS}"), ("y", "")])
def test_ranks_of_a_job_that_share_a_gpu_are_told_of(
    others: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="x"))
    control = SimpleNamespace(gathered=lambda mine: [mine, (others, True)])
    job = SimpleNamespace(device=torch.device("cuda", 0), control=control)
    assert gpu_sharing(cast(LiveJob, job)) == words


def test_within_an_arena_the_cpu_stands_for_a_device_of_that_memory() -> None:
    with Arena(48_000_000):
        assert device_type_of(torch.device("cpu")) == "arena"
        assert device_memory_gb(torch.device("cpu")) == 0.048
    assert device_type_of(torch.device("cpu")) == "cpu"
    assert device_memory_gb(torch.device("cpu")) is None


GPU = torch.device("cuda", 0)


def test_the_peak_of_a_gpu_is_what_tensors_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what the process has of the host's memory."""
    reset: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 1234)
    assert reset_peak(GPU)
    assert reset == [GPU]
    assert peak_bytes(GPU) == 1234
    assert peak_bytes(torch.device("cpu")) > 1 << 20


def test_a_round_trip_ends_when_the_device_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A send over NCCL returns when it has been asked for."""
    log: list[str] = []
    clock = iter(range(1000))

    def noting(what: str) -> Callable[..., Any]:
        return lambda *given, **named: log.append(what)

    def now() -> float:
        log.append("clock")
        return float(next(clock))

    monkeypatch.setattr(torch.cuda, "synchronize", noting("done"))
    monkeypatch.setattr(torch, "zeros", noting("made"))
    monkeypatch.setattr(job_cluster, "time", SimpleNamespace(monotonic=now))
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "send", noting("send"))
    monkeypatch.setattr(dist, "recv", noting("recv"))
    control = SimpleNamespace(from_first=lambda told: told, agreed=lambda task: task())
    job: Any = SimpleNamespace(device=GPU, control=control, group=None)
    assert job_cluster._latency_seconds(job) == 0.5
    trip = ["done", "clock", "send", "recv", "done", "clock"]
    assert log == ["made", *trip * job_cluster.LATENCY_TRIPS]


@pytest.mark.parametrize(
    ("step_seconds", "slowdown"), [(0.1, 1.0), (0.105, 1.0), (0.095, 1.0), (0.2, 2.0), (0.05, 0.5)]
)
def test_ranks_are_as_slow_as_the_profiled_one_says(step_seconds: float, slowdown: float) -> None:
    """Not as the fastest says: where rank 0 is slow, its profile holds that already."""
    assert device_of_report(RankReport("host", "cpu", None, step_seconds), 0.1).slowdown == slowdown


def test_ranks_of_a_host_share_in_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may have a NIC of its own, which the first one alone would not use."""
    rings, taken = [(0, 2), (1, 3)], [0.05, 0.1, 0.2, 0.1]
    asked: list[Any] = []
    monkeypatch.setattr(dist, "get_rank", lambda: 3)
    monkeypatch.setattr(job_cluster, "_exchange", lambda job, ring, size: asked.append(ring))
    control = SimpleNamespace(agreed=lambda task: task(), gathered=lambda mine: taken)
    job: Any = SimpleNamespace(control=control)
    both = 2 * job_cluster.SMALLEST_BYTES
    assert job_cluster._link_rates(job, rings) == [both / 0.2, both / 0.1]
    assert asked == [(1, 3)] * 2


def test_ranks_of_a_host_must_follow_one_another() -> None:
    assert ranks_of_hosts(["a", "a", "b"]) == {"a": [0, 1], "b": [2]}
    with pytest.raises(InvalidInput, match="one after another"):
        ranks_of_hosts(["a", "b", "a"])


def test_no_pass_begins_when_the_tunings_time_is_up() -> None:
    """No rank is asked: all can go on."""
    job: Any = None
    pool = JobPool(job, "job (test)", until=10.0, clock=lambda: 10.0)
    with pytest.raises(TrialFailed, match="the time of the tuning is up") as raised:
        pool.run_pass(TrialRequest("late", ddp(small_domain())), after_load=False)
    assert raised.value.ranks_usable
    assert raised.value.error.kind == "timeout"


def test_nics_are_told_where_every_node_has_its_own_kernel() -> None:
    def answer(nic: str, host: str) -> PassDone:
        return PassDone(MeasuredIterations((), 0.0, 0.0, 0.0, 0.0, 0), host, None, 0.0, nic=nic)

    first, other = answer("a", "x"), answer("b", "y")
    assert counted_nics([first, first, other]) == ["a", "a", "b"]
    assert counted_nics([first, answer("b", "x")]) == []
    assert counted_nics([first, first]) == []
    assert counted_nics([answer("", "x"), answer("", "y")]) == []


def test_a_tuning_whose_ranks_gloo_does_not_join_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def new_group(**options: object) -> None:
        raise RuntimeError("Gloo connectFullMesh failed with [pair.cc:152] timed out connecting")

    monkeypatch.setattr(dist, "new_group", new_group)
    with pytest.raises(SynchronizationFailed, match="set GLOO_SOCKET_IFNAME"):
        open_control(timedelta(seconds=1))


def test_a_rank_outside_of_a_ring_stops_where_one_in_it_cannot_exchange(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own part was nothing. What it gathered next would be taken for the others' errors."""

    def agreed(task: Callable[[], float]) -> float:
        assert task() == 0.0
        raise InvalidInput("rank 1 cannot tune: no memory")

    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    monkeypatch.setattr(job_cluster, "_exchange", lambda job, ring, size: float(len(ring)))
    job: Any = SimpleNamespace(control=SimpleNamespace(agreed=agreed))  # nothing is gathered
    with pytest.raises(InvalidInput, match="rank 1 cannot tune: no memory"):
        job_cluster._link_rates(job, [(0, 1)])


def test_a_ranks_own_error_is_told_where_the_others_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They may wait for it in a collective of the step, until they or this rank give up."""
    lost, own = SynchronizationFailed("a rank of the job was lost"), ValueError("no such file")

    def gathered(control: ControlGroup, mine: object) -> None:
        raise lost

    def step() -> None:
        raise own

    monkeypatch.setattr(ControlGroup, "gathered", gathered)
    nothing: Any = None
    with pytest.raises(SynchronizationFailed, match="was lost") as raised:
        ControlGroup(nothing).agreed(step)
    assert raised.value.__cause__ is own
