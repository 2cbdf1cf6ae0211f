"""The device type of a rank in a running job."""

from types import SimpleNamespace
from typing import cast

import pytest
import torch

from autosync.errors import NotSupported
from autosync.runtime.swapping.arena import Arena
from autosync.trials.live.live_cluster import device_memory_gb, device_type_of, gpu_sharing
from autosync.trials.live.live_job import LiveJob
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
