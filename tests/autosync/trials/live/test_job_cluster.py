"""The device type of a rank in a running job."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from autosync.errors import InvalidInput, NotSupported
from autosync.extensions.offload.arena import Arena
from autosync.trials.iterations import peak_bytes, reset_peak
from autosync.trials.live import job_cluster
from autosync.trials.live.job import LiveJob
from autosync.trials.live.job_cluster import (
    RankReport,
    device_memory_gb,
    device_of_report,
    device_type_of,
    gpu_sharing,
    ranks_of_hosts,
)
from autosync.trials.request_names import GPU_IN_TURNS


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


def test_a_cpu_is_a_cpu() -> None:
    assert device_type_of(torch.device("cpu")) == "cpu"
    assert device_memory_gb(torch.device("cpu")) is None


def test_within_an_arena_the_cpu_stands_for_a_device_of_that_memory() -> None:
    with Arena(48_000_000):
        assert device_type_of(torch.device("cpu")) == "arena"
        assert device_memory_gb(torch.device("cpu")) == 0.048
    assert device_type_of(torch.device("cpu")) == "cpu"


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
    control = SimpleNamespace(from_first=lambda told: told)
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


def test_ranks_of_a_host_must_follow_one_another() -> None:
    assert ranks_of_hosts(["a", "a", "b"]) == {"a": [0, 1], "b": [2]}
    with pytest.raises(InvalidInput, match="one after another"):
        ranks_of_hosts(["a", "b", "a"])
